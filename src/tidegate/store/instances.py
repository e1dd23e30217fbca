"""Instances: registered or only heard of, alive, dead, unloaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import cache

from sqlalchemy import Connection, bindparam, case, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.execution import Execution
from tidegate.model.instance import Instance, InstanceStatus
from tidegate.model.messages import InstanceState
from tidegate.store.dialect import among, clock, insert_into
from tidegate.store.execution_rows import lose_all_of
from tidegate.store.instance_rows import columns_of, instance_of
from tidegate.store.leaders import require_term
from tidegate.store.reader import Reader
from tidegate.store.schema import etl_instances
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

_COLUMNS = etl_instances.c
_ALL = select(etl_instances).order_by(_COLUMNS.name, _COLUMNS.instance_id)
_OF = select(etl_instances).where(_COLUMNS.process == bindparam("on_process"))
_SOME = Statement(
    lambda dialect: select(etl_instances).where(among(dialect, _COLUMNS.instance_id, "ids"))
)
# All that an instance's own life changes, and the stamp of its registration.
_STAMPS = select(
    _COLUMNS.instance_id,
    _COLUMNS.updated_at,
    _COLUMNS.reported_at,
    _COLUMNS.state,
    _COLUMNS.status,
    _COLUMNS.disabled,
)
_GONE = (InstanceStatus.DEAD.value, InstanceStatus.UNLOADED.value)


class SqlInstances:
    """Implements `ports.Instances`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def all(self) -> Sequence[Instance]:
        return [instance_of(row) for row in self._reader.rows(_ALL)]

    def stamps(self) -> Mapping[str, object]:
        return {row[0]: row for row in self._reader.plain(_STAMPS)}

    def some(self, ids: Collection[str]) -> Mapping[str, Instance]:
        rows = self._reader.rows_of(_SOME, {"ids": list(ids)})
        return {row["instance_id"]: instance_of(row) for row in rows}

    def of(self, process: str) -> Sequence[Instance]:
        return [instance_of(row) for row in self._reader.rows(_OF, {"on_process": process})]

    def register(self, instances: Sequence[Instance]) -> None:
        self._writer.write(lambda connection: _register(connection, instances))

    def beat(self, states: Mapping[str, InstanceState]) -> Future[None]:
        return self._writer.submit(lambda connection: _beat(connection, states))

    def set_status(self, process: str, status: InstanceStatus) -> None:
        def write(connection: Connection) -> None:
            at = clock(connection)
            of_process = update(etl_instances).where(_COLUMNS.process == process)
            connection.execute(
                of_process.values(status=status.value, status_updated_at=at, updated_at=at)
            )

        self._writer.write(write)

    def disable(self, instances: Collection[str], disabled: bool) -> None:
        def write(connection: Connection) -> None:
            chosen = update(etl_instances).where(_COLUMNS.instance_id.in_(instances))
            connection.execute(chosen.values(disabled=disabled, updated_at=clock(connection)))

        self._writer.write(write)

    def bury(
        self, instances: Collection[str], ended: frozenset[str], why: str, term: int
    ) -> Sequence[Execution]:
        return self._writer.write(lambda connection: _bury(connection, instances, ended, why, term))

    def trim(self, before: int, term: int) -> None:
        def write(connection: Connection) -> None:
            require_term(connection, term)
            connection.execute(
                delete(etl_instances).where(
                    _COLUMNS.status == InstanceStatus.UNLOADED.value,
                    _COLUMNS.status_updated_at < before,
                )
            )

        self._writer.write(write)


def _register(connection: Connection, instances: Sequence[Instance]) -> None:
    at = clock(connection)
    rows = [columns_of(instance, at) for instance in instances]
    connection.execute(_registered(connection.dialect.name), rows)


@cache
def _registered(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """An instance that was heard of before it registered is told apart from a foreign one now."""
    statement = insert_into(dialect, etl_instances)
    said = ("name", "host", "pid", "process", "kinds", "tags", "status", "updated_at")
    return statement.on_conflict_do_update(
        index_elements=[_COLUMNS.instance_id],
        set_={name: statement.excluded[name] for name in said},
    )


def _hearing(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = insert_into(dialect, etl_instances)
    # Not IN: a statement that is run for many rows cannot have a list in it.
    new, gone = statement.excluded, or_(*(_COLUMNS.status == status for status in _GONE))
    return statement.on_conflict_do_update(
        index_elements=[_COLUMNS.instance_id],
        set_={
            "state": new.state,
            "reported_at": new.reported_at,
            "updated_at": new.updated_at,
            "status": case((gone, InstanceStatus.ALIVE.value), else_=_COLUMNS.status),
            "status_updated_at": case((gone, new.updated_at), else_=_COLUMNS.status_updated_at),
        },
    )


_HEAR = Statement(_hearing)


def _beat(connection: Connection, states: Mapping[str, InstanceState]) -> None:
    at = clock(connection)
    # In one order, so that two who beat at once wait and do not clash.
    rows = [
        columns_of(Instance(id, state=state, reported_at=at), at)
        for id, state in sorted(states.items())
    ]
    _HEAR.run_many(connection, rows)


def _bury(
    connection: Connection, instances: Collection[str], ended: frozenset[str], why: str, term: int
) -> Sequence[Execution]:
    """Leader steps 1 to 3 in one transaction: dead, work taken away, unloaded."""
    require_term(connection, term)
    at = clock(connection)
    lost = lose_all_of(connection, instances, ended, why, at)
    connection.execute(
        update(etl_instances)
        .where(_COLUMNS.instance_id.in_(instances))
        .values(status=InstanceStatus.UNLOADED.value, status_updated_at=at, updated_at=at)
    )
    return lost
