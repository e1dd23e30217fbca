"""Who works, who leads, and what people want: instances, the lease, flow controls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.errors import ClaimLost, Deposed, WrongUse
from tidegate.model.entities import operator_action
from tidegate.model.instances import (
    FOR_ALL,
    Instance,
    InstanceStatus,
    Lease,
    Sharing,
    overdue,
)
from tidegate.model.messages import InstanceState
from tidegate.ports.store import FlowControl
from tidegate.store.backends import among, clock_column, hold, insert_into
from tidegate.store.datasets import append
from tidegate.store.schema import etl_instances, flow_controls, leadership, offsets
from tidegate.store.writer import Reader, Row, Statement, Writer, clock

_SET_STATE = Statement(
    update(etl_instances)
    .where(etl_instances.c.instance_id == bindparam("on_instance"))
    .values(state=bindparam("now_state"))
)


def set_state(connection: Connection, instance: str, state: InstanceState) -> None:
    """Let an instance's state change with its execution, without waiting for its heartbeat."""
    _SET_STATE.run(connection, {"on_instance": instance, "now_state": state.value})


def instance_of(row: Mapping[Any, Any]) -> Instance:
    return Instance(
        id=row["instance_id"],
        status=InstanceStatus(row["status"]),
        state=InstanceState(row["state"]),
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        process=row["process"],
        kinds=tuple(row["kinds"]),
        tags=tuple(row["tags"]),
        disabled=row["disabled"],
        reported_at=row["reported_at"],
        started_at=row["started_at"],
        status_updated_at=row["status_updated_at"],
    )


def columns_of(instance: Instance, at: int) -> dict[str, Any]:
    """Give every column of an instance that is first known of now."""
    return {
        "instance_id": instance.id,
        "name": instance.name,
        "host": instance.host,
        "pid": instance.pid,
        "process": instance.process,
        "kinds": list(instance.kinds),
        "tags": list(instance.tags),
        "state": instance.state.value,
        "status": InstanceStatus.ALIVE.value,
        "disabled": instance.disabled,
        "reported_at": instance.reported_at,
        "started_at": at,
        "status_updated_at": at,
        "created_at": at,
        "updated_at": at,
    }


_LOCKED = Statement(select(leadership).with_for_update())
_SEEN = Statement(lambda dialect: select(leadership, clock_column(dialect).label("now")))
_CHANGE = update(leadership).where(leadership.c.id == 1)


class SqlLeadership:
    """Implements `ports.Leadership`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def read(self) -> Lease:
        return self._seen() or self._writer.write(_lease)

    def take(self, holder: str, length: int) -> int | None:
        return self._writer.write(lambda connection: _take(connection, holder, length))

    def renew(self, term: int, length: int) -> Lease | None:
        # Looked at first: whoever waits to write waits for all others, many times a second.
        seen = self._seen()
        if seen is not None and seen.term == term and _is_fresh(seen, length):
            return seen
        return self._writer.write(lambda connection: _renew(connection, term, length))

    def resign(self, term: int) -> None:
        def write(connection: Connection) -> None:
            at = clock(connection)
            mine = _CHANGE.where(leadership.c.term == term)
            connection.execute(mine.values(holder="", expires_at=0, updated_at=at))

        self._writer.write(write)

    def _seen(self) -> Lease | None:
        """Give row and clock of one moment; None before the first election."""
        row = self._reader.first_of(_SEEN)
        return None if row is None else _lease_of(row, row["now"])


def require_term(connection: Connection, term: int | None) -> None:
    """Let only the leader of this term go on, and nobody be elected before it is done."""
    if term is None:
        return
    standing = _row(connection)
    if standing["term"] != term or not standing["holder"]:
        raise Deposed(f"term {term} is over: {standing['holder'] or 'nobody'} leads now")


def _row(connection: Connection) -> Row:
    """Give the one row, made before the first election, and keep it from others."""
    found = _LOCKED.first(connection)
    if found is None:
        connection.execute(_first(connection.dialect.name))
        found = _LOCKED.rows(connection)[0]
    return found


@cache
def _first(dialect: str) -> Insert:
    nobody = {"term": 0, "holder": "", "expires_at": 0, "elected_at": 0}
    statement = insert_into(dialect, leadership).values(id=1, **nobody, created_at=0, updated_at=0)
    # Another process may make it at the same time.
    return statement.on_conflict_do_nothing(index_elements=[leadership.c.id])


def _lease(connection: Connection) -> Lease:
    return _lease_of(_row(connection), clock(connection))


def _lease_of(row: Row, now: int) -> Lease:
    return Lease(row["term"], row["holder"], row["expires_at"], row["elected_at"], now)


def _is_fresh(lease: Lease, length: int) -> bool:
    """Tell whether somebody leads, and has renewed it not long ago.

    It is written when a third of it is gone: a busy leader turns many times a second.
    """
    return lease.established(length) and lease.expires_at - lease.now >= length * 2 // 3


def _take(connection: Connection, holder: str, length: int) -> int | None:
    lease = _lease(connection)
    if lease.established(length):
        return None
    connection.execute(
        _CHANGE.values(
            term=lease.term + 1,
            holder=holder,
            expires_at=lease.now + length,
            elected_at=lease.now,
            updated_at=lease.now,
        )
    )
    return lease.term + 1


def _renew(connection: Connection, term: int, length: int) -> Lease | None:
    lease = _lease(connection)
    # One that has run out is taken anew, with a new term: others may have begun to act on its end.
    if lease.term != term or not lease.established(length):
        return None
    if not _is_fresh(lease, length):
        connection.execute(_CHANGE.values(expires_at=lease.now + length, updated_at=lease.now))
    return lease


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
_GONE = tuple(status.value for status in InstanceStatus if not status.lives)
# Asked with every claim: counted, for a worker may have hundreds.
_LIVES = and_(*(_COLUMNS.status != status for status in _GONE))
_COUNTS: Sequence[ColumnElement[Any]] = (
    func.count().label("known"),
    func.count().filter(_LIVES).label("living"),
)
_MINE = Statement(select(*_COUNTS).where(_COLUMNS.process == bindparam("on_process")))
_LIVING = _ALL.where(_COLUMNS.process != "", _COLUMNS.status.not_in(_GONE))
_HELD = select(offsets.c.topic, offsets.c.hostid).where(offsets.c.hostid != "")


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

    def register(
        self,
        instances: Sequence[Instance],
        lake: Sharing = FOR_ALL,
        ended: frozenset[str] = frozenset(),
    ) -> None:
        self._writer.write(lambda connection: _register(connection, instances, lake, ended))

    def beat(self, states: Mapping[str, InstanceState]) -> Future[None]:
        return self._writer.submit(lambda connection: _beat(connection, states))

    def set_status(self, process: str, status: InstanceStatus) -> None:
        def write(connection: Connection) -> None:
            at = clock(connection)
            of_process = update(etl_instances).where(_COLUMNS.process == process)
            if status.lives:
                # Who was given up may have lost its lake: there is one way back for all.
                of_process = of_process.where(_COLUMNS.status.not_in(_GONE))
            connection.execute(
                of_process.values(status=status.value, status_updated_at=at, updated_at=at)
            )

        self._writer.write(write)

    def disable(self, instances: Collection[str], disabled: bool) -> None:
        def write(connection: Connection) -> None:
            chosen = update(etl_instances).where(_COLUMNS.instance_id.in_(instances))
            connection.execute(chosen.values(disabled=disabled, updated_at=clock(connection)))

        self._writer.write(write)

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


def clash(connection: Connection, lake: Sharing, hostid: str, ended: frozenset[str]) -> str | None:
    """Say who has a lake that this process would write to; None when it may, until it is done.

    Decided here, and nowhere else: of any number that start at once, on any hosts, the first to
    get through has it. Whoever is passed over cannot come back by a heartbeat.
    """
    if lake.one_commit_wins:
        return None
    hold(connection, "lake")
    at = clock(connection)
    rows = connection.execute(_LIVING).mappings().all()
    living = [one for one in map(instance_of, rows) if lake.keeps_out(one.process, hostid)]
    silent = overdue(living, at, 0, lake.dead_after)
    passed = [one for one in living if one in silent or one.process in ended]
    held = {row.topic: row.hostid for row in connection.execute(_HELD) if row.hostid not in ended}
    why = lake.clash(hostid, (one for one in living if one not in passed), held)
    if why is None and passed:
        _mark(connection, [one.id for one in passed], InstanceStatus.DEAD, at)
    return why


def lake_lost(
    connection: Connection, lake: Sharing, hostid: str, dead: frozenset[str]
) -> str | None:
    """Say who has the lake of a process that is about to claim; None when it may go on.

    A worker has it by its registration, and keeps others out for as long as it counts as living.
    """
    if lake.one_commit_wins:
        return None
    hold(connection, "lake")
    mine = _MINE.first(connection, {"on_process": hostid})
    if mine is None or not mine["known"]:
        return clash(connection, lake, hostid, dead)
    if mine["living"]:
        return None
    raise ClaimLost(f"{hostid} was silent for too long: it writes nothing until it is known again")


def _register(
    connection: Connection, instances: Sequence[Instance], lake: Sharing, ended: frozenset[str]
) -> None:
    for process in {one.process for one in instances}:
        why = clash(connection, lake, process, ended)
        if why is not None:
            raise WrongUse(why)
    at = clock(connection)
    rows = [columns_of(instance, at) for instance in instances]
    connection.execute(_registered(connection.dialect.name), rows)


@cache
def _registered(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """An instance that was heard of before it registered is told apart from a foreign one now."""
    statement = insert_into(dialect, etl_instances)
    said = ("name", "host", "pid", "process", "kinds", "tags", "status", "updated_at")
    heard = {"status_updated_at": statement.excluded.updated_at}
    # It is heard now, however long it was silent.
    heard["reported_at"] = statement.excluded.updated_at
    return statement.on_conflict_do_update(
        index_elements=[_COLUMNS.instance_id],
        set_={name: statement.excluded[name] for name in said} | heard,
    )


def _hearing(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = insert_into(dialect, etl_instances)
    # Not IN: a statement that is run for many rows cannot have a list in it.
    new, gone = statement.excluded, or_(*(_COLUMNS.status == status for status in _GONE))
    # One of ours registers anew: what it writes to may be others' by now.
    revived = and_(gone, _COLUMNS.process == "")
    return statement.on_conflict_do_update(
        index_elements=[_COLUMNS.instance_id],
        set_={
            "state": new.state,
            "reported_at": new.reported_at,
            "updated_at": new.updated_at,
            "status": case((revived, InstanceStatus.ALIVE.value), else_=_COLUMNS.status),
            "status_updated_at": case((revived, new.updated_at), else_=_COLUMNS.status_updated_at),
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


def mark_unloaded(connection: Connection, instances: Collection[str], at: int) -> None:
    """Write down that the work of dead instances is taken away."""
    _mark(connection, instances, InstanceStatus.UNLOADED, at)


def _mark(
    connection: Connection, instances: Collection[str], status: InstanceStatus, at: int
) -> None:
    connection.execute(
        update(etl_instances)
        .where(_COLUMNS.instance_id.in_(instances))
        .values(status=status.value, status_updated_at=at, updated_at=at)
    )


_CONTROLS = flow_controls.c
_NOTHING: Mapping[str, Any] = {
    "paused_at": None,
    "paused_by": "",
    "paused_why": "",
    "run_asked_at": None,
}


class SqlFlowControls:
    """Implements `ports.FlowControls`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def all(self) -> Mapping[str, FlowControl]:
        return {
            row["flow_id"]: FlowControl(
                row["paused_at"], row["paused_by"], row["paused_why"], row["run_asked_at"]
            )
            for row in self._reader.rows(select(flow_controls))
        }

    def pause(self, flow: str, by: str, why: str, at: int) -> None:
        change = {"paused_at": at, "paused_by": by, "paused_why": why}
        self._change([flow], change, by, f"pause{': ' + why if why else ''}", at)

    def unpause(self, flow: str, by: str, at: int) -> None:
        change = {"paused_at": None, "paused_by": "", "paused_why": ""}
        self._change([flow], change, by, "resume", at)

    def ask_to_run(self, flows: Sequence[str], by: str, at: int) -> None:
        self._change(flows, {"run_asked_at": at}, by, "run now", at)

    def note(self, flow: str, by: str, what: str, at: int) -> None:
        """Keep an action by hand that changed something else than a flow's controls."""
        self._writer.write(
            lambda connection: _noted(connection, flow, by, what, at),
        )

    def _change(
        self, flows: Sequence[str], change: Mapping[str, Any], by: str, what: str, at: int
    ) -> None:
        def write(connection: Connection) -> None:
            statement = insert_into(connection.dialect.name, flow_controls)
            changed = {**change, "updated_at": at}
            for flow in sorted(flows):
                connection.execute(
                    statement.values(
                        flow_id=flow, **{**_NOTHING, **changed, "created_at": at}
                    ).on_conflict_do_update(index_elements=[_CONTROLS.flow_id], set_=changed)
                )
                _noted(connection, flow, by, what, at)

        self._writer.write(write)


def _noted(connection: Connection, flow: str, by: str, what: str, at: int) -> None:
    append(connection, flow, [operator_action(flow, by, what, at)], at)
