"""History that is old enough to go: executions with their streams, blocks, datasets, the ETL log.

In small bites, each a transaction of its own, so that nobody waits long for the lock. What is open,
what waits to be tried again, what a retry goes on from and what a rebuild has to know stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    literal,
    select,
)

from tidegate.model.entities import FailedState
from tidegate.store.fleet import require_term
from tidegate.store.schema import (
    blocks,
    dataset_entities,
    etl_executions,
    etl_log,
    etl_phase_executions,
    failed_rows,
    offsets,
)
from tidegate.store.writer import Reader, Writer

_BEFORE = bindparam("before", type_=BigInteger)
_MOST = bindparam("most", type_=BigInteger)
_LATER = etl_executions.alias("later")
_HELD = select(offsets.c.execution_id).where(offsets.c.execution_id.is_not(None))


def _executions() -> Select[tuple[str]]:
    """Those that ended long ago, but for each flow's last: a retry goes on from that."""
    old = etl_executions.c
    goes_on = exists().where(
        _LATER.c.flow_id == old.flow_id, _LATER.c.assigned_at > old.assigned_at
    )
    return (
        select(old.id)
        .where(old.finished_at < _BEFORE, goes_on, old.id.not_in(_HELD))
        .order_by(old.finished_at)
        .limit(_MOST)
    )


def _blocks() -> Select[tuple[str, int, str]]:
    """Those before the last of a flow, but for the first with rows: a rebuild asks for it."""
    old, later, earlier = blocks.c, blocks.alias("later").c, blocks.alias("earlier").c
    return (
        select(old.topic, old.seq, old.execution_id)
        .where(
            old.created_at < _BEFORE,
            exists().where(later.topic == old.topic, later.seq > old.seq),
            exists().where(earlier.topic == old.topic, earlier.seq < old.seq, earlier.rows > 0),
        )
        .limit(_MOST)
    )


def _entities() -> Select[tuple[str, int]]:
    """Those of runs that have ended; what tells of a row that waits stays with it."""
    old, running, failed = dataset_entities.c, etl_executions.c, failed_rows.c
    return (
        select(old.flow_id, old.location)
        .where(
            old.at < _BEFORE,
            ~exists().where(
                running.flow_id == old.flow_id,
                running.finished_at.is_(None),
                running.started_location <= old.location,
            ),
            ~_waits(old.flow_id, old.entity_id, failed.topic, failed.entity_id),
        )
        .limit(_MOST)
    )


def _waits(
    flow: ColumnElement[str],
    entity: ColumnElement[str],
    topic: ColumnElement[str],
    row: ColumnElement[str],
) -> ColumnElement[bool]:
    waiting = failed_rows.c.state == FailedState.WAITING.value
    return exists().where(and_(topic == flow, waiting, entity == literal("write-error:") + row))


def _log() -> Select[tuple[int]]:
    return select(etl_log.c.id).where(etl_log.c.ts < _BEFORE).limit(_MOST)


_EXECUTIONS, _BLOCKS, _ENTITIES, _LOG = _executions(), _blocks(), _entities(), _log()


class SqlRetention:
    """Implements `ports.Retention`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer

    def trim(self, before: int, term: int | None, most: int) -> bool:
        wanted = {"before": before, "most": most}
        # Looked for outside of the lock: what is old stays old.
        ids = [{"execution_id": row["id"]} for row in self._reader.rows(_EXECUTIONS, wanted)]
        bites: Sequence[tuple[Table, Sequence[Mapping[Any, Any]]]] = (
            (etl_phase_executions, ids),
            (etl_executions, [{"id": one["execution_id"]} for one in ids]),
            (blocks, self._reader.rows(_BLOCKS, wanted)),
            (dataset_entities, self._reader.rows(_ENTITIES, wanted)),
            (etl_log, self._reader.rows(_LOG, wanted)),
        )
        for table, keys in bites:
            if keys:
                self._writer.write(partial(_forget, table=table, keys=keys, term=term))
        return any(len(keys) >= most for _, keys in bites)


def _forget(
    connection: Connection, table: Table, keys: Sequence[Mapping[Any, Any]], term: int | None
) -> None:
    require_term(connection, term)
    names = list(keys[0])
    matches = and_(*(table.c[name] == bindparam(f"on_{name}") for name in names))
    rows = [{f"on_{name}": key[name] for name in names} for key in keys]
    connection.execute(delete(table).where(matches), rows)
