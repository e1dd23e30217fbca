"""A session made ready for one block: its tables, block() and its like, its views, its guards."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import FlowFailed, Problem
from tidegate.model.position import START, Block, Position
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost, sentence
from tidegate.sql.editing import pinned, sharded, typed, typed_statement
from tidegate.sql.reading import ViewText, read_view, statement_tables, statements, tables_read
from tidegate.tables.definition import Processor, TableDefinition

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


BAD_POSITION = "TIDEGATE_POSITION"
BAD_ROW = "TIDEGATE_CHECK"


def guard(
    rows: DataFrame, definition: TableDefinition, *, checks: bool, movable: bool
) -> DataFrame:
    """Fail on a row outside of the block, and on one that a check is not true for.

    Spark pushes a plain condition below joins, where it fails for rows that the join drops. One
    that is not movable counts its rows, which keeps it where it stands.
    """
    faults = []
    if definition.processor is Processor.STEP:
        pos, id = f"`{definition.pos}`", f"`{definition.id}`"
        faults.append((f"block({pos}, {id}, typeof({pos}))", BAD_POSITION))
    if checks and definition.checks:
        # NULL is not true.
        every = " AND ".join(f"coalesce(({check}), false)" for check in definition.checks.values())
        faults.append((every, BAD_ROW))
    if not faults:
        return rows
    cases = " ".join(f"WHEN NOT ({test}) THEN raise_error('{marker}')" for test, marker in faults)
    passes = "true" if movable else "monotonically_increasing_id() >= 0"
    return rows.where(f"CASE {cases} ELSE {passes} END")


_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "FROM", "TABLE"})


class BlockViews:
    """Prepares sessions: what a view names is there, and means the block at hand."""

    def __init__(self, tables: Tables, catalogued: set[str]) -> None:
        self._tables = tables
        self._catalogued = catalogued
        """Tables that the catalog, which all sessions of a Spark share, is known to know."""

    def define(
        self,
        session: SparkSession,
        definition: TableDefinition,
        block: Block,
        reach: Reach | None = None,
    ) -> None:
        """Make the functions of the block; `block()` is true for its rows, or for the reach."""
        last, next, seq = block.last, block.next, block.seq
        topic = definition.rebuilds or definition.topic
        text = "\n".join(
            (*definition.views.values(), definition.before, definition.after, definition.log)
        )
        if definition.processor is Processor.RELOAD:
            define_constants(session, topic=topic, last=last, next=next, seq=seq, text=text)
            return
        base = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        if base is None:
            raise FlowFailed(
                f"{definition.base} has no columns {definition.base_pos} (a bigint or a timestamp)"
                f" and {definition.base_id} (a bigint) to carry a position"
            )
        define_functions(
            session,
            topic=topic,
            kind=base.kind,
            reach=reach or Reach(last, next),
            last=last,
            next=next,
            seq=seq,
            text=text,
        )

    def rows(
        self, session: SparkSession, definition: TableDefinition, versions: Mapping[str, int]
    ) -> DataFrame:
        """Step 4: make the views and give the rows of all transforms together."""
        texts = {name: read_view(name, text) for name, text in definition.views.items()}
        self._register(session, definition, tables_read(list(texts), texts))
        pins = {name.lower(): version for name, version in versions.items()}
        frames: dict[str, DataFrame] = {}
        for name, view in texts.items():
            arguments = {key: definition.vars[key] for key in view.parameters}
            own = sharded(view.text, definition.shard) if definition.shard else view.text
            frame = session.sql(typed(pinned(own, pins)), args=arguments or None)
            if _is_read(name, texts, definition):
                frame.createOrReplaceTempView(f"`{name}`")
            frames[name.lower()] = frame
        wanted = (frames[name.lower()] for name in definition.transforms)
        return reduce(lambda above, below: above.unionByName(below), wanted)

    def run_statements(
        self, session: SparkSession, definition: TableDefinition, field: str, text: str
    ) -> None:
        """Run `before` or `after`, statement by statement."""
        for statement in statements(text):
            try:
                self._register(session, definition, statement_tables(statement))
                frame = session.sql(typed_statement(statement))
                if statement.split(maxsplit=1)[0].upper() in _QUERIES:
                    # Spark runs a command at once, and a query only when somebody wants its rows.
                    frame.write.format("noop").mode("overwrite").save()
            except Exception as error:
                start = " ".join(statement.split())[:60]
                raise FlowFailed(f"{field} ({start}): {sentence(error)}") from error

    def _register(
        self, session: SparkSession, definition: TableDefinition, names: Iterable[str]
    ) -> None:
        """Let the session know tables of the lake by name; what it knows already stays as it is."""
        # Spark and the readers of views take names without regard to case; folders do not.
        listed = {name.lower(): name for name in (*definition.listed, definition.table)}
        for name in names:
            spelled = listed.get(name.lower(), name)
            if spelled in self._catalogued:
                continue
            if spelled.count(".") == 1 and self._tables.exists(spelled):
                register_table(session, spelled, self._tables.path(spelled))
                self._catalogued.add(spelled)


def _is_read(name: str, views: Mapping[str, ViewText], definition: TableDefinition) -> bool:
    """Tell whether anything reads a view by its name; to make one costs a statement."""
    by_views = any(name.lower() in view.views for view in views.values())
    return by_views or is_named(name, f"{definition.after}\n{definition.log}")


def register_table(session: SparkSession, name: str, path: str) -> None:
    """Put a table that stands in the lake into the session's catalog."""
    if session.catalog.tableExists(name):
        return
    database, _, table = name.partition(".")
    session.sql(f"CREATE SCHEMA IF NOT EXISTS `{database}`")
    session.sql(
        f"CREATE TABLE IF NOT EXISTS `{database}`.`{table}` USING DELTA LOCATION {literal(path)}"
    )


def read_table(session: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Read a table of the lake by its place, as of a version where one is given."""
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(path)


def read_base(
    session: SparkSession, tables: Tables, definition: TableDefinition, versions: Mapping[str, int]
) -> DataFrame:
    """Read the rows of the base table that are the topic's."""
    table = read_table(session, tables.path(definition.base), versions.get(definition.base))
    return table.where(definition.shard.condition()) if definition.shard else table


def literal(text: str) -> str:
    """Write a text as a Spark string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def analyse(
    spark: SparkHost, tables: Tables, definitions: Mapping[str, TableDefinition]
) -> list[Problem]:
    """Give a problem for each topic whose views Spark refuses.

    A topic whose tables are not all there yet cannot be analysed, and is left out.
    """
    views = BlockViews(tables, spark.catalogued)
    findings: list[Problem] = []
    block = Block(START, START, 0, 0, False, 0, 0)
    for definition in definitions.values():
        if definition.processor is Processor.SOURCE:
            continue
        if definition.shard and definition.shard.number > 0:
            # What is true of the first shard is true of the others.
            continue
        if not all(map(tables.exists, definition.listed)):
            continue
        session = spark.fresh()
        try:
            views.define(session, definition, block)
            columns = {name.lower() for name in views.rows(session, definition, {}).columns}
        except FlowFailed as error:
            findings.append(_refused(definition.transforms[0], str(error)))
        except Exception as error:  # noqa: BLE001  (whatever Spark says, it says of this view)
            message = f"{definition.topic}: {sentence(error)}"
            findings.append(_refused(definition.transforms[-1], message))
        else:
            missing = sorted({name.lower() for name in definition.keys} - columns)
            findings += [
                _refused(
                    definition.transforms[0], f"{definition.topic}: does not give the key {name}"
                )
                for name in missing
            ]
    return findings


def _refused(view: str, message: str) -> Problem:
    return Problem(f"views/{view}.sql", 1, "", message)
