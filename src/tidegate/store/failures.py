"""Rows that fail: pending with a load, made true by the commit of its block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, delete, func, select, update

from tidegate.errors import WrongUse
from tidegate.model.entities import write_error
from tidegate.model.execution import Execution
from tidegate.model.failed import MOST_WAITING, FailedRow, FailedState
from tidegate.model.position import Position
from tidegate.store.datasets import append
from tidegate.store.dialect import insert_into
from tidegate.store.offset_rows import change, owned
from tidegate.store.reader import Reader
from tidegate.store.schema import failed_rows
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

_COLUMNS = failed_rows.c
_PENDING = Statement(
    select(failed_rows).where(
        _COLUMNS.topic == bindparam("on_topic"), _COLUMNS.pending_seq == bindparam("on_seq")
    )
)
_ANY = Statement(select(_COLUMNS.topic).where(_COLUMNS.topic == bindparam("on_topic")).limit(1))
_WAITING = Statement(
    select(func.count().label("rows")).where(
        _COLUMNS.topic == bindparam("on_topic"), _COLUMNS.state == FailedState.WAITING.value
    )
)
_TRIED_AGAIN = (
    select(failed_rows)
    .where(_COLUMNS.topic == bindparam("on_topic"), _COLUMNS.state == FailedState.WAITING.value)
    .order_by(_COLUMNS.attempts, _COLUMNS.pos, _COLUMNS.id, _COLUMNS.entity_id)
    .limit(bindparam("most", type_=BigInteger))
)
_TO_TRY = Statement(_TRIED_AGAIN)
_COUNTS = (
    select(_COLUMNS.topic, _COLUMNS.state, func.count().label("rows"))
    .where(_COLUMNS.state.is_not(None))
    .group_by(_COLUMNS.topic, _COLUMNS.state)
)

_SETTLED: Mapping[str, Any] = {"pending_seq": None, "pending": None}


class SqlFailures:
    """Implements `ports.Failures`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def waiting(self, topic: str, limit: int) -> Sequence[FailedRow]:
        rows = self._reader.rows(_TRIED_AGAIN, {"on_topic": topic, "most": limit})
        return [_row_of(row, row) for row in rows]

    def counts(self) -> Mapping[str, Mapping[FailedState, int]]:
        rows = self._reader.rows(_COUNTS)
        counted: dict[str, dict[FailedState, int]] = {}
        for row in rows:
            counted.setdefault(row["topic"], {})[FailedState(row["state"])] = row["rows"]
        return counted

    def pend(self, execution: Execution, seq: int, rows: Sequence[FailedRow], at: int) -> None:
        self._writer.write(lambda connection: _pend(connection, execution, seq, rows, at))

    def retry(self, topic: str, at: int) -> int:
        return self._writer.write(lambda connection: _retry(connection, topic, at))


def waiting(connection: Connection, topic: str) -> tuple[FailedRow, ...]:
    """Give the rows of a topic that an execution tries again."""
    # Nearly always there are none, and to ask for them in order takes ten times as long.
    if not _has_failed(connection, topic):
        return ()
    rows = _TO_TRY.rows(connection, {"on_topic": topic, "most": MOST_WAITING})
    return tuple(_row_of(row, row) for row in rows)


def _pend(
    connection: Connection, execution: Execution, seq: int, rows: Sequence[FailedRow], at: int
) -> None:
    owned(connection, execution)
    topic = execution.topic
    # What an earlier attempt at the block found is no longer what this one will write.
    connection.execute(delete(failed_rows).where(_COLUMNS.topic == topic, _COLUMNS.state.is_(None)))
    connection.execute(
        update(failed_rows)
        .where(_COLUMNS.topic == topic, _COLUMNS.pending_seq.is_not(None))
        .values(pending_seq=None, pending=None)
    )
    if not rows:
        return
    statement = insert_into(connection.dialect.name, failed_rows)
    new = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[_COLUMNS.topic, _COLUMNS.entity_id],
            set_={"pending_seq": new.pending_seq, "pending": new.pending, "updated_at": at},
        ),
        [_columns_of(topic, seq, row, at) for row in rows],
    )


def settle(connection: Connection, execution: Execution, seq: int, at: int) -> tuple[int, bool]:
    """Make true what the block left pending; give how many failed, and whether some wait."""
    if not _has_failed(connection, execution.topic):
        return 0, False
    place = {"on_topic": execution.topic, "on_seq": seq}
    rows = [_row_of(row, row["pending"]) for row in _PENDING.rows(connection, place)]
    if rows:
        errors = [write_error(execution, row, at) for row in rows]
        append(connection, execution.flow_id, errors, at)
        _forget(connection, execution.topic, seq)
        _keep(connection, execution.topic, seq, rows, at)
    failed = sum(row.state is not FailedState.WRITTEN for row in rows)
    waiting: int = _WAITING.scalar(connection, {"on_topic": execution.topic})
    return failed, waiting > 0


def _has_failed(connection: Connection, topic: str) -> bool:
    """Tell whether any row of a topic is known to have failed, whatever became of it."""
    return _ANY.first(connection, {"on_topic": topic}) is not None


def take_over(
    connection: Connection, execution: Execution, shadow: str, at: int
) -> tuple[int, bool]:
    """Let the failed rows of a shadow take the place of the topic's own; count as `settle` does."""
    topic = execution.topic
    known = select(failed_rows).where(_COLUMNS.state.is_not(None))
    before = connection.execute(known.where(_COLUMNS.topic == topic)).mappings()
    old = [_row_of(row, row) for row in before]
    found = connection.execute(known.where(_COLUMNS.topic == shadow)).mappings()
    new = [_row_of(row, row) for row in found]
    failing = {row.entity_id for row in new}
    passed = [row.brought_in() for row in old if row.entity_id not in failing]
    errors = [write_error(execution, row, at) for row in (*new, *passed)]
    if errors:
        append(connection, execution.flow_id, errors, at)
    connection.execute(delete(failed_rows).where(_COLUMNS.topic == topic))
    connection.execute(
        update(failed_rows)
        .where(_COLUMNS.topic == shadow, _COLUMNS.state.is_not(None))
        .values(topic=topic, updated_at=at, **_SETTLED)
    )
    return len(new), any(row.state is FailedState.WAITING for row in new)


def _forget(connection: Connection, topic: str, seq: int) -> None:
    """Take out what the block settles; the log keeps its story."""
    connection.execute(
        delete(failed_rows).where(_COLUMNS.topic == topic, _COLUMNS.pending_seq == seq)
    )


def _keep(connection: Connection, topic: str, seq: int, rows: Sequence[FailedRow], at: int) -> None:
    kept = [
        {**_columns_of(topic, seq, row, at), "state": row.state.value, **_SETTLED}
        for row in rows
        if row.state is not FailedState.WRITTEN
    ]
    if kept:
        connection.execute(failed_rows.insert(), kept)


def _retry(connection: Connection, topic: str, at: int) -> int:
    connection.execute(
        update(failed_rows)
        .where(_COLUMNS.topic == topic, _COLUMNS.state == FailedState.DEAD.value)
        .values(state=FailedState.WAITING.value, attempts=0, updated_at=at)
    )
    waiting: int = _WAITING.scalar(connection, {"on_topic": topic})
    if not waiting:
        raise WrongUse(f"{topic} has no rows that failed: there is nothing to try again")
    # Without a definition that they were tried with, the plan takes them for worth a try.
    change(connection, topic, {"definition_version": None}, at)
    return waiting


def _columns_of(topic: str, seq: int, row: FailedRow, at: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "entity_id": row.entity_id,
        "pos": row.position.pos,
        "id": row.position.id,
        "hash": row.hash,
        "raised": row.raised,
        "state": None,
        "attempts": row.attempts,
        "reason": row.reason,
        "entity": dict(row.entity),
        "pending_seq": seq,
        "pending": {
            "state": row.state.value,
            "attempts": row.attempts,
            "reason": row.reason,
            "entity": dict(row.entity),
        },
        "created_at": at,
        "updated_at": at,
    }


def _row_of(row: Mapping[Any, Any], told: Mapping[Any, Any]) -> FailedRow:
    """Read a row, with what is told of it: by itself, or by what is pending."""
    return FailedRow(
        position=Position(row["pos"], row["id"]),
        hash=row["hash"],
        entity=told["entity"],
        reason=told["reason"],
        raised=row["raised"],
        attempts=told["attempts"],
        state=FailedState(told["state"]),
    )
