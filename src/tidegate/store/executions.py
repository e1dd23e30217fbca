"""Executions in the store: kept, started, ended, each with its event in the flow's dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, func, select, update

from tidegate.errors import ClaimLost, StoreError
from tidegate.model.entities import task_completed, task_failed, task_started
from tidegate.model.execution import OPEN, Execution, ExecutionState, queued_again
from tidegate.model.flow import Definition, Kind, Operation
from tidegate.model.messages import InstanceState
from tidegate.ports.store import OutgoingMessage
from tidegate.store.backends import among, insert_into
from tidegate.store.datasets import append, entity_at, left_pending, some_wait
from tidegate.store.fleet import mark_unloaded, require_term, set_state
from tidegate.store.messages import post, rows_of
from tidegate.store.positions import claim_lost, free_of_the_dead
from tidegate.store.schema import etl_executions
from tidegate.store.writer import Reader, Row, Statement, Writer, clock

UNCLAIMED_MILLISECONDS = 60_000
"""One that is younger may be about to race for the topic, and wants to hear who won."""
_OPEN_STATES = sorted(state.value for state in OPEN)


# Built once; what is set is named when they are run.
_COLUMNS = etl_executions.c
_STATES = ("in_1", "in_2", "in_3")
"""As many as there are open ones; fewer are named twice."""
_MOVING = (
    update(etl_executions)
    .where(
        _COLUMNS.id == bindparam("on_id"),
        _COLUMNS.state.in_([bindparam(name, type_=Text) for name in _STATES]),
    )
    .returning(etl_executions)
)
_HANDING_OUT = _MOVING.where(_COLUMNS.etl_worker == bindparam("as_worker"))
_MOVE = Statement(_MOVING)
_HAND_OUT = Statement(_HANDING_OUT)
_START = Statement(
    _HANDING_OUT.where(
        _COLUMNS.topic == bindparam("of_topic"), _COLUMNS.lane == bindparam("of_lane")
    ).values(
        etl_worker=func.coalesce(
            func.nullif(_COLUMNS.etl_worker, ""), bindparam("hostid", type_=Text)
        ),
        accepted_at=func.coalesce(_COLUMNS.accepted_at, bindparam("now", type_=BigInteger)),
    )
)
# Added in the database: whoever says it need not know what was counted before.
_COUNT = Statement(
    _MOVING.values(
        rows=func.coalesce(_COLUMNS.rows, 0) + bindparam("more_rows", type_=BigInteger),
        failed=_COLUMNS.failed + bindparam("more_failed", type_=BigInteger),
    )
)
_LOSE_UNCLAIMED = Statement(
    update(etl_executions)
    .where(
        _COLUMNS.topic == bindparam("of_topic"),
        # By a clock that is an hour ahead, the one that claims is itself from long ago.
        _COLUMNS.id != bindparam("but"),
        _COLUMNS.state == ExecutionState.ASSIGNED.value,
        # True of every assigned one; it lets the index of the open ones be used.
        _COLUMNS.finished_at.is_(None),
        _COLUMNS.assigned_at < bindparam("before", type_=BigInteger),
    )
    .values(state=ExecutionState.LOST.value)
)
_KEEP = Statement(
    lambda dialect: (
        insert_into(dialect, etl_executions)
        .on_conflict_do_nothing(index_elements=[_COLUMNS.id])
        .returning(_COLUMNS.id)
    )
)


def _while_in(states: Sequence[str]) -> dict[str, str]:
    return {name: states[min(place, len(states) - 1)] for place, name in enumerate(_STATES)}


def keep(connection: Connection, execution: Execution) -> None:
    """Insert an execution as assigned."""
    row = {
        "id": execution.id,
        "flow_kind": execution.flow_kind.value,
        "flow_id": execution.flow_id,
        "topic": execution.topic,
        "lane": execution.lane,
        "operation": execution.operation.value,
        "attempt": execution.attempt,
        "retry_of": execution.retry_of,
        "etl_worker": execution.etl_worker,
        "state": ExecutionState.ASSIGNED.value,
        "assigned_at": execution.assigned_at,
        "comment": execution.comment,
        "configuration": dict(execution.configuration),
        "term": execution.term,
        "tags": list(execution.tags),
        "created_at": execution.assigned_at,
        "updated_at": execution.assigned_at,
    }
    if _KEEP.first(connection, row) is None:
        raise StoreError(
            f"execution {execution.id} of {execution.topic} is in the store already; a retry needs"
            " an id of its own"
        )


def start(
    connection: Connection,
    execution: Execution,
    definition: Definition | None,
    hostid: str,
    at: int,
) -> Execution:
    """Move assigned → running and say so in the dataset; raises ClaimLost."""
    event = task_started(execution, definition, at)
    location = append(connection, execution.flow_id, [event], at)
    running = {
        "on_id": execution.id,
        **_while_in([ExecutionState.ASSIGNED.value]),
        "as_worker": execution.etl_worker,
        "of_topic": execution.topic,
        "of_lane": execution.lane,
        "state": ExecutionState.RUNNING.value,
        "hostid": hostid,
        "now": at,
        "started_at": at,
        "started_location": location,
        "updated_at": at,
    }
    started = _START.first(connection, running)
    if started is None:
        raise _not_assigned(execution)
    set_state(connection, execution.etl_worker, InstanceState.BUSY)
    return execution_of(started)


def reject(connection: Connection, execution: Execution, comment: str, at: int) -> None:
    """End an execution that never started; raises ClaimLost when it is no longer assigned."""
    assigned = (ExecutionState.ASSIGNED.value,)
    ended = _end(connection, execution.id, assigned, ExecutionState.REJECTED, comment, at)
    if ended is None:
        raise _not_assigned(execution)


def finish(
    connection: Connection, execution: Execution, rows: int, failed: int, comment: str, at: int
) -> Execution:
    """End an execution that did its work, with how many entities came out and failed at last."""
    more = {"more_rows": rows, "more_failed": failed}
    row = _end_running(connection, execution, ExecutionState.FINISHED, comment, at, more)
    ended = execution_of(row)
    retryable = some_wait(connection, ended.topic)
    event = task_completed(ended, row["started_location"], retryable=retryable, at=at)
    append(connection, ended.flow_id, [event], at)
    return ended


def go_on(
    connection: Connection, execution: Execution, rows: int, failed: int, at: int
) -> Execution:
    """Add what a running execution has committed; raises ClaimLost when it has ended."""
    running = _while_in([ExecutionState.RUNNING.value])
    more = {"more_rows": rows, "more_failed": failed}
    row = _COUNT.first(connection, {"on_id": execution.id, **running, **more, "updated_at": at})
    if row is None:
        raise claim_lost(execution)
    return execution_of(row)


def fail(connection: Connection, execution: Execution, comment: str, why: str, at: int) -> None:
    """End an execution that failed; raises ClaimLost."""
    ended = _end_running(connection, execution, ExecutionState.FAILED, comment, at)
    _append_failure(connection, ended, why, at)


def lose(connection: Connection, execution_id: str, comment: str, why: str, at: int) -> None:
    """End an execution whose holder is gone, unless it has ended already."""
    ended = _end(connection, execution_id, _OPEN_STATES, ExecutionState.LOST, comment, at)
    if ended is not None and ended["started_location"] is not None:
        _append_failure(connection, ended, why, at)


def follow(connection: Connection, before: Execution, after: Execution, at: int) -> None:
    """Write how far a foreign execution has come, unless it has moved since it was read."""
    moved = {
        "on_id": before.id,
        **_while_in([before.state.value]),
        "state": after.state.value,
        "accepted_at": after.accepted_at,
        "started_at": after.started_at,
        "finished_at": after.finished_at,
        "comment": after.comment,
        "updated_at": at,
    }
    if _MOVE.first(connection, moved) is not None and not after.state.open:
        _leave(connection, before.id, before.etl_worker, after.state, at)


def hand_out(connection: Connection, execution: Execution) -> bool:
    """Give a queued execution to an instance; tell whether it still was to be had."""
    given = {
        "on_id": execution.id,
        **_while_in([ExecutionState.ASSIGNED.value]),
        "as_worker": "",
        "etl_worker": execution.etl_worker,
        "assigned_at": execution.assigned_at,
        "term": execution.term,
        "updated_at": execution.assigned_at,
    }
    return _HAND_OUT.first(connection, given) is not None


def ask_to_cancel(connection: Connection, execution_id: str, at: int) -> bool:
    """Note that somebody wants an open execution to end; tell whether it is open."""
    asked = {
        "on_id": execution_id,
        **_while_in(_OPEN_STATES),
        "cancel_requested_at": at,
        "updated_at": at,
    }
    return _MOVE.first(connection, asked) is not None


def _lose_all_of(
    connection: Connection, instances: Collection[str], ended: frozenset[str], why: str, at: int
) -> list[Execution]:
    """Take the work of instances away; free their mutexes where the holder is known to be gone."""
    mine = select(etl_executions).where(
        # What a process does beside its assignments, it does in its own name.
        _COLUMNS.etl_worker.in_([*instances, *ended]),
        _COLUMNS.state.in_(_OPEN_STATES),
        _COLUMNS.finished_at.is_(None),
    )
    lost = [execution_of(row) for row in connection.execute(mine).mappings().all()]
    for execution in lost:
        _take_away(connection, execution, ended, why, at)
    return lost


def _lose_some(
    connection: Connection, lost: Mapping[str, str], ended: frozenset[str], at: int
) -> None:
    """Take executions away, each for its reason; free the mutexes of holders that are gone."""
    named = select(etl_executions).where(_COLUMNS.id.in_(lost))
    for row in connection.execute(named).mappings().all():
        execution = execution_of(row)
        _take_away(connection, execution, ended, lost[execution.id], at)


def _take_away(
    connection: Connection, execution: Execution, ended: frozenset[str], why: str, at: int
) -> None:
    # Locks are taken in one order: the topic's row before the execution's.
    free_of_the_dead(connection, execution, ended, at)
    lose(connection, execution.id, why, why, at)


def lose_unclaimed(connection: Connection, claiming: Execution, at: int) -> None:
    """End what was assigned for the topic long ago and never claimed: whoever assigned it died."""
    lost = {
        "of_topic": claiming.topic,
        "but": claiming.id,
        "before": at - UNCLAIMED_MILLISECONDS,
        "finished_at": at,
        "comment": f"lost: never claimed, and {claiming.id} has the topic now",
        "updated_at": at,
    }
    _LOSE_UNCLAIMED.run(connection, lost)


def _end_running(
    connection: Connection,
    execution: Execution,
    state: ExecutionState,
    comment: str,
    at: int,
    more: Mapping[str, int] | None = None,
) -> Row:
    running = (ExecutionState.RUNNING.value,)
    ended = _end(connection, execution.id, running, state, comment, at, more)
    if ended is None:
        raise claim_lost(execution)
    return ended


def _end(
    connection: Connection,
    execution_id: str,
    while_in: Sequence[str],
    state: ExecutionState,
    comment: str,
    at: int,
    more: Mapping[str, int] | None = None,
) -> Row | None:
    """Write an end over one of the given states; None when the execution is in another."""
    end = {
        "on_id": execution_id,
        **_while_in(while_in),
        "state": state.value,
        "finished_at": at,
        "comment": comment,
        "updated_at": at,
    }
    ended = _COUNT.first(connection, {**end, **more}) if more else _MOVE.first(connection, end)
    if ended is not None:
        _leave(connection, execution_id, ended["etl_worker"], state, at)
    return ended


def _leave(
    connection: Connection, execution_id: str, worker: str, state: ExecutionState, at: int
) -> None:
    """Let an instance go from an execution that ended; another may have to take it up."""
    set_state(connection, worker, InstanceState.IDLE)
    if state in (ExecutionState.LOST, ExecutionState.REJECTED):
        found = select(etl_executions).where(_COLUMNS.id == execution_id)
        ended = execution_of(connection.execute(found).mappings().one())
        if not ended.flow_kind.ends_in_store and ended.cancel_requested_at is None:
            keep(connection, queued_again(ended, at))


def _append_failure(connection: Connection, ended: Row, why: str, at: int) -> None:
    location: int = ended["started_location"]
    started = entity_at(connection, ended["flow_id"], location)
    # What it found to fail, too: the next one tries it again, with the block.
    found = left_pending(connection, ended["topic"], ended["started_at"])
    retryable = found > 0 or some_wait(connection, ended["topic"])
    failed = replace(execution_of(ended), failed=ended["failed"] + found)
    event = task_failed(failed, location, started, reason=why, retryable=retryable, at=at)
    append(connection, ended["flow_id"], [event], at)


def _not_assigned(execution: Execution) -> ClaimLost:
    return ClaimLost(
        f"execution {execution.id} of {execution.topic} is no longer assigned: it was claimed or"
        " ended before, so nothing was done; the next plan makes a new one"
    )


def execution_of(row: Mapping[Any, Any]) -> Execution:
    return Execution(
        id=row["id"],
        flow_kind=Kind(row["flow_kind"]),
        flow_id=row["flow_id"],
        topic=row["topic"],
        state=ExecutionState(row["state"]),
        lane=row["lane"],
        operation=Operation(row["operation"]),
        attempt=row["attempt"],
        retry_of=row["retry_of"],
        etl_worker=row["etl_worker"],
        assigned_at=row["assigned_at"],
        accepted_at=row["accepted_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        comment=row["comment"],
        rows=row["rows"],
        failed=row["failed"],
        configuration=row["configuration"],
        term=row["term"],
        tags=tuple(row["tags"] or ()),
    )


# Built once: they are asked for each execution, or at every turn of a leader.
_ONE = select(etl_executions).where(_COLUMNS.id == bindparam("on_id"))
_SOME = Statement(lambda dialect: select(etl_executions).where(among(dialect, _COLUMNS.id, "ids")))
_STILL_OPEN = (
    select(etl_executions)
    .where(_COLUMNS.finished_at.is_(None))
    .order_by(_COLUMNS.assigned_at, _COLUMNS.id)
)
_ALL_OPEN = Statement(_STILL_OPEN)
_OPEN_OF = Statement(
    lambda dialect: _STILL_OPEN.where(among(dialect, _COLUMNS.etl_worker, "instances"))
)

_BEGUN = Statement(
    lambda dialect: (
        select(etl_executions)
        .where(
            among(dialect, _COLUMNS.flow_id, "flows"), _COLUMNS.assigned_at >= bindparam("since")
        )
        .order_by(_COLUMNS.assigned_at, _COLUMNS.id)
    )
)


class SqlExecutions:
    """Implements `ports.Executions`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def assign(self, execution: Execution) -> None:
        if execution.assigned_at is None:
            raise StoreError(
                f"execution {execution.id} of {execution.topic} has no assigned_at; whoever"
                " assigns it has to say when"
            )
        self._writer.write(lambda connection: keep(connection, execution))

    def assign_all(
        self,
        executions: Sequence[Execution],
        term: int,
        enclosed: Sequence[OutgoingMessage],
        at: int,
    ) -> None:
        messages = rows_of(enclosed, at)

        def write(connection: Connection) -> None:
            require_term(connection, term)
            for execution in executions:
                keep(connection, execution)
            post(connection, messages)

        if executions:
            self._writer.write(write)

    def hand_out(self, queued: Sequence[Execution], term: int) -> Sequence[Execution]:
        def write(connection: Connection) -> Sequence[Execution]:
            require_term(connection, term)
            return [one for one in queued if hand_out(connection, one)]

        return self._writer.write(write) if queued else []

    def lose(self, lost: Mapping[str, str], ended: frozenset[str], term: int, at: int) -> None:
        def write(connection: Connection) -> None:
            require_term(connection, term)
            _lose_some(connection, lost, ended, at)

        if lost:
            self._writer.write(write)

    def unload(
        self, instances: Collection[str], ended: frozenset[str], why: str, term: int
    ) -> Sequence[Execution]:
        def write(connection: Connection) -> Sequence[Execution]:
            require_term(connection, term)
            at = clock(connection)
            lost = _lose_all_of(connection, instances, ended, why, at)
            mark_unloaded(connection, instances, at)
            return lost

        return self._writer.write(write)

    def follow(self, moved: Sequence[tuple[Execution, Execution]], term: int, at: int) -> None:
        def write(connection: Connection) -> None:
            require_term(connection, term)
            for before, after in moved:
                follow(connection, before, after, at)

        if moved:
            self._writer.write(write)

    def ask_to_cancel(self, execution_id: str, at: int) -> bool:
        return self._writer.write(lambda connection: ask_to_cancel(connection, execution_id, at))

    def open(self, instances: Sequence[str] | None = None) -> Sequence[Execution]:
        if instances is None:
            rows = self._reader.rows_of(_ALL_OPEN)
        else:
            rows = self._reader.rows_of(_OPEN_OF, {"instances": list(instances)})
        return [execution_of(row) for row in rows]

    def get(self, execution_id: str) -> Execution | None:
        row = self._reader.first(_ONE, {"on_id": execution_id})
        return None if row is None else execution_of(row)

    def some(self, ids: Collection[str]) -> Mapping[str, Execution]:
        rows = self._reader.rows_of(_SOME, {"ids": list(ids)})
        return {row["id"]: execution_of(row) for row in rows}

    def begun(self, flows: Collection[str], since: int) -> Sequence[Execution]:
        rows = self._reader.rows_of(_BEGUN, {"flows": list(flows), "since": since})
        return [execution_of(row) for row in rows]

    def list(
        self,
        *,
        flow: str | None = None,
        state: ExecutionState | None = None,
        limit: int | None = None,
    ) -> Sequence[Execution]:
        statement = select(etl_executions).limit(limit)
        if flow is not None:
            statement = statement.where(_COLUMNS.flow_id == flow)
        if state is not None:
            statement = statement.where(_COLUMNS.state == state.value)
        if state is not None and state.open:
            # True of every open one; it lets the index of the open ones be used.
            statement = statement.where(_COLUMNS.finished_at.is_(None))
        newest_first = statement.order_by(_COLUMNS.assigned_at.desc(), _COLUMNS.id.desc())
        return [execution_of(row) for row in self._reader.rows(newest_first)]
