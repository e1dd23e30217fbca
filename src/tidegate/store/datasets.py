"""Task execution datasets: each entity at a place of its own; and the rows that fail and wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    RowMapping,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    type_coerce,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from tidegate.errors import WrongUse
from tidegate.model.entities import FailedRow, FailedState, write_error
from tidegate.model.execution import Execution
from tidegate.model.position import Position
from tidegate.store.backends import insert_into
from tidegate.store.positions import change, owned
from tidegate.store.schema import dataset_entities, datasets, failed_rows
from tidegate.store.writer import Reader, Statement, Writer

_ENTITY_AT = Statement(
    select(dataset_entities.c.entity).where(
        dataset_entities.c.flow_id == bindparam("on_flow"),
        dataset_entities.c.location == bindparam("on_location"),
    )
)
_APPEND = Statement(insert(dataset_entities))


def _counting_on(dialect: str) -> ReturningInsert[int]:
    """Build the statement that begins a counter or moves it on, and tells where it then stands."""
    statement = insert_into(dialect, datasets)
    new, next_location = statement.excluded, datasets.c.next_location
    return statement.on_conflict_do_update(
        index_elements=[datasets.c.flow_id],
        set_={"next_location": next_location + new.next_location, "updated_at": new.updated_at},
    ).returning(next_location)


_COUNT_ON = Statement(_counting_on)


class SqlDatasets:
    """Implements `ports.Datasets`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def flows(self) -> Sequence[str]:
        rows = self._reader.rows(select(datasets.c.flow_id).order_by(datasets.c.flow_id))
        return [row["flow_id"] for row in rows]

    def entities(
        self, flow: str, *, since: int = 0, limit: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        rows = self._reader.rows(
            select(dataset_entities.c.location, dataset_entities.c.entity)
            .where(dataset_entities.c.flow_id == flow, dataset_entities.c.location >= since)
            .order_by(dataset_entities.c.location)
            .limit(limit)
        )
        return [_located(row) for row in rows]

    def newest(self, flow: str, limit: int) -> Sequence[Mapping[str, Any]]:
        rows = self._reader.rows(
            select(dataset_entities.c.location, dataset_entities.c.entity)
            .where(dataset_entities.c.flow_id == flow)
            .order_by(dataset_entities.c.location.desc())
            .limit(limit)
        )
        return [_located(row) for row in reversed(rows)]

    def latest(self, flow: str, *, limit: int | None = None) -> Sequence[Mapping[str, Any]]:
        # The index alone answers this; entities are read of those that are given.
        location = func.max(dataset_entities.c.location)
        newest = (
            select(location)
            .where(dataset_entities.c.flow_id == flow)
            .group_by(dataset_entities.c.entity_id)
            .order_by(location.desc())
            .limit(limit)
        )
        rows = self._reader.rows(
            select(dataset_entities.c.location, dataset_entities.c.entity)
            .where(dataset_entities.c.flow_id == flow, dataset_entities.c.location.in_(newest))
            .order_by(dataset_entities.c.location)
        )
        return [_located(row) for row in rows]


def append(
    connection: Connection, flow: str, entities: Sequence[Mapping[str, Any]], at: int
) -> int:
    """Append entities to a flow's dataset and give the location of the first."""
    first = _take_locations(connection, flow, len(entities), at)
    _APPEND.run_many(
        connection,
        [
            {
                "flow_id": flow,
                "location": location,
                "entity_id": entity["_id"],
                "event_type": entity.get("event_type"),
                "at": at,
                "entity": dict(entity),
                "created_at": at,
                "updated_at": at,
            }
            for location, entity in enumerate(entities, first)
        ],
    )
    return first


def entity_at(connection: Connection, flow: str, location: int) -> Mapping[str, Any]:
    """Give an entity as it was appended."""
    place = {"on_flow": flow, "on_location": location}
    entity: Mapping[str, Any] = _ENTITY_AT.scalar(connection, place)
    return entity


def _take_locations(connection: Connection, flow: str, count: int, at: int) -> int:
    """Move the flow's counter on; the row stays locked until the entities are committed."""
    counter = {"flow_id": flow, "next_location": count, "created_at": at, "updated_at": at}
    moved: int = _COUNT_ON.scalar(connection, counter)
    return moved - count


def _located(row: RowMapping) -> Mapping[str, Any]:
    return {**row["entity"], "_location": row["location"]}


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
_LEFT_PENDING = Statement(
    select(func.count().label("rows")).where(
        _COLUMNS.topic == bindparam("on_topic"),
        _COLUMNS.pending_seq.is_not(None),
        # As `_columns_of` writes it: what passes by now would be in the table with the commit.
        type_coerce(_COLUMNS.pending, Text).not_like(f'{{"state":"{FailedState.WRITTEN}"%'),
        _COLUMNS.updated_at >= bindparam("since", type_=BigInteger),
    )
)
_TRIED_AGAIN = Statement(
    select(failed_rows)
    .where(_COLUMNS.topic == bindparam("on_topic"), _COLUMNS.state == FailedState.WAITING.value)
    .order_by(_COLUMNS.attempts, _COLUMNS.pos, _COLUMNS.id, _COLUMNS.entity_id)
    .limit(bindparam("most", type_=BigInteger))
)
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
        # Nearly always there are none, and to ask for them in order takes ten times as long.
        if self._reader.first_of(_ANY, {"on_topic": topic}) is None:
            return []
        rows = self._reader.rows_of(_TRIED_AGAIN, {"on_topic": topic, "most": limit})
        return [_row_of(row, row) for row in rows]

    def pending(self, topic: str, seq: int) -> int:
        if self._reader.first_of(_ANY, {"on_topic": topic}) is None:
            return 0
        found = self._reader.rows_of(_PENDING, {"on_topic": topic, "on_seq": seq})
        return _stay_out([_row_of(row, row["pending"]) for row in found])

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


def settle(connection: Connection, execution: Execution, seq: int, at: int) -> int:
    """Make true what the block left pending; give how many failed."""
    if not _has_failed(connection, execution.topic):
        return 0
    place = {"on_topic": execution.topic, "on_seq": seq}
    rows = [_row_of(row, row["pending"]) for row in _PENDING.rows(connection, place)]
    if rows:
        errors = [write_error(execution, row, at) for row in rows]
        append(connection, execution.flow_id, errors, at)
        _forget(connection, execution.topic, seq)
        _keep(connection, execution.topic, seq, rows, at)
    return _stay_out(rows)


def _stay_out(rows: Sequence[FailedRow]) -> int:
    return sum(row.state is not FailedState.WRITTEN for row in rows)


def some_wait(connection: Connection, topic: str) -> bool:
    """Tell whether anything of a flow that failed waits to be tried again."""
    if not _has_failed(connection, topic):
        return False
    waiting: int = _WAITING.scalar(connection, {"on_topic": topic})
    return waiting > 0


def left_pending(connection: Connection, topic: str, since: int) -> int:
    """Count the rows that a load has found to fail since, and that no commit has settled."""
    if not _has_failed(connection, topic):
        return 0
    found: int = _LEFT_PENDING.scalar(connection, {"on_topic": topic, "since": since})
    return found


def _has_failed(connection: Connection, topic: str) -> bool:
    """Tell whether any row of a topic is known to have failed, whatever became of it."""
    return _ANY.first(connection, {"on_topic": topic}) is not None


def take_over(connection: Connection, execution: Execution, shadow: str, at: int) -> int:
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
    return len(new)


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
