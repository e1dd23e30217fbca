"""The SQL functions that a block gives to its views: block(), upto(), seq() and the like."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from tidegate.model.position import Position

_TYPES = {"bigint": "BIGINT", "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Reach:
    """The rows that `block()` is true for: a range, less some rows, and some of before."""

    last: Position
    next: Position
    without: frozenset[Position] = frozenset()
    """Rows that Spark fails over."""
    again: frozenset[Position] = frozenset()
    """Rows that failed before and are tried again."""

    def condition(self, kind: str) -> str:
        """Write it over `pos` and `id`, in a form that files are pruned by."""
        test = in_block(kind, self.last, self.next)
        if self.without:
            test = f"{test} AND NOT ({at_positions(kind, self.without)})"
        if self.again:
            test = f"(({test}) OR ({at_positions(kind, self.again)}))"
        return test


def define_functions(
    session: SparkSession,
    *,
    topic: str,
    kind: str,
    reach: Reach,
    last: Position,
    next: Position,
    seq: int,
    text: str,
) -> None:
    """Make the functions of one block, for a base table whose pos is of that kind.

    Each costs a statement, so only those that the text names are made, and block().
    """
    for name, test in (("block", reach.condition(kind)), ("upto", up_to(kind, next))):
        if name == "upto" and not is_named(name, text):
            continue
        session.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {name}"
            f"(pos {_TYPES[kind]}, id BIGINT, kind STRING) RETURNS BOOLEAN"
            f" RETURN {_right_kind(name, kind)} AND {test}"
        )
    define_constants(session, topic=topic, last=last, next=next, seq=seq, text=text)


def define_constants(
    session: SparkSession, *, topic: str, last: Position, next: Position, seq: int, text: str
) -> None:
    """Make the functions that only tell which block is at work."""
    position = "STRUCT<pos: BIGINT, id: BIGINT>"
    for name, returns, value in (
        ("block_last", position, _struct(last)),
        ("block_next", position, _struct(next)),
        ("seq", "BIGINT", f"{seq}L"),
        ("topic", "STRING", f"'{topic}'"),
    ):
        if not is_named(name, text):
            continue
        session.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {name}() RETURNS {returns} RETURN {value}"
        )


def is_named(name: str, text: str) -> bool:
    """Tell whether SQL mentions a function or a view, in whatever place."""
    return re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) is not None


def in_block(kind: str, last: Position, next: Position) -> str:
    """Write the condition for (last, next] over `pos` and `id`, in a form that files are pruned by.

    Times are cut to milliseconds: ids decide only within the first and the last millisecond.
    """
    later = (
        f"pos > {_bigint(last.pos)}" if kind == "bigint" else f"pos >= {_at(kind, last.pos + 1)}"
    )
    return (
        f"pos >= {_at(kind, last.pos)} AND {up_to(kind, next)}"
        f" AND ({later} OR id > {_bigint(last.id)})"
    )


def up_to(kind: str, next: Position) -> str:
    """Write the condition for everything up to `next`."""
    through = (
        f"pos <= {_bigint(next.pos)}" if kind == "bigint" else f"pos < {_at(kind, next.pos + 1)}"
    )
    return (
        f"pos >= {_at(kind, 0)} AND {through}"
        f" AND (pos < {_at(kind, next.pos)} OR id <= {_bigint(next.id)}) AND id IS NOT NULL"
    )


def at_positions(
    kind: str, positions: Collection[Position], pos: str = "pos", id: str = "id"
) -> str:
    """Write the condition for rows at one of the positions, in a form that files are pruned by."""
    least, greatest = min(positions).pos, max(positions).pos
    below = f"<= {_bigint(greatest)}" if kind == "bigint" else f"< {_at(kind, greatest + 1)}"
    listed = ", ".join(f"'{position.pos}:{position.id}'" for position in sorted(positions))
    place = f"concat({millis(kind, pos)}, ':', CAST({id} AS BIGINT))"
    return f"{pos} >= {_at(kind, least)} AND {pos} {below} AND {place} IN ({listed})"


def millis(kind: str, pos: str) -> str:
    """Write a pos as milliseconds."""
    match kind:
        case "bigint":
            return f"CAST({pos} AS BIGINT)"
        case "timestamp":
            return f"unix_millis({pos})"
        case _:
            return f"unix_millis(CAST({pos} AS TIMESTAMP))"


def _right_kind(name: str, kind: str) -> str:
    # Spark would turn a timestamp into seconds, or the reverse, silently, and find nothing.
    integers = "('bigint', 'int', 'smallint', 'tinyint')"
    wanted = f"kind IN {integers}" if kind == "bigint" else f"kind = '{kind}'"
    message = f"concat('TIDEGATE_KIND {name}() wants a pos of type {kind}, not ', kind)"
    return f"(CASE WHEN {wanted} THEN true ELSE raise_error({message}) END)"


def _at(kind: str, milliseconds: int) -> str:
    match kind:
        case "bigint":
            return _bigint(milliseconds)
        case "timestamp":
            return f"timestamp_millis({_bigint(min(milliseconds, 2**63 // 1000 - 1))})"
        case _:
            moment = _EPOCH + timedelta(milliseconds=min(milliseconds, _LAST_NTZ))
            return f"TIMESTAMP_NTZ '{moment:%Y-%m-%d %H:%M:%S.%f}'"


_LAST_NTZ = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds() * 1000)


def _bigint(number: int) -> str:
    return f"({number}L)" if number < 0 else f"{number}L"


def _struct(position: Position) -> str:
    return f"named_struct('pos', {_bigint(position.pos)}, 'id', {_bigint(position.id)})"
