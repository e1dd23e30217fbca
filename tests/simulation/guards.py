"""What keeps the promises: each can be taken away, and then the plays must fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from unittest.mock import patch

from sqlalchemy import Connection, bindparam, select, update

from tidegate.model.entities import task_started
from tidegate.model.execution import Block, Execution, ExecutionState, Offset
from tidegate.model.lineage import Definition
from tidegate.ports import Claimed
from tidegate.services.executor import Executor
from tidegate.store import claims, execution_rows, executions, failures, instances, offset_rows
from tidegate.store.datasets import append
from tidegate.store.schema import etl_executions, offsets
from tidegate.store.statement import Row, Statement


class Guard(Enum):
    """A guard, by its name in the design."""

    TERM = "term on leader writes"
    ACCEPT = "accept"
    CLAIM = "claim"
    COMMIT = "conditional commit"
    BLOCK = "declared block"
    TRANSACTION = "transaction version"


@contextmanager
def without(guard: Guard | None) -> Iterator[None]:
    """Take a guard out of the code for as long as the block lasts."""
    with ExitStack() as stack:
        for place, name, instead in _INSTEAD.get(guard, ()):
            stack.enter_context(patch.object(place, name, instead))
        yield


def _any_term(connection: Connection, term: int | None) -> None:
    """Let whoever calls himself a leader write."""


def _start(
    connection: Connection,
    execution: Execution,
    definition: Definition | None,
    hostid: str,
    at: int,
) -> Execution:
    """Start an execution whatever has become of it since it was assigned."""
    event = task_started(execution, definition, at)
    location = append(connection, execution.flow_id, [event], at)
    columns = etl_executions.c
    start = update(etl_executions).where(columns.id == bindparam("on_id"))
    running = {
        "on_id": execution.id,
        "state": ExecutionState.RUNNING.value,
        "etl_worker": execution.etl_worker or hostid,
        "accepted_at": at,
        "started_at": at,
        "started_location": location,
        "updated_at": at,
    }
    row = connection.execute(start.returning(etl_executions), running).mappings().one()
    return execution_rows.execution_of(row)


def _nobody_in_the_way(*_: object) -> None:
    """Let everybody take every topic."""


def _owned_by_anybody(connection: Connection, execution: Execution) -> Offset:
    found = select(offsets).where(offsets.c.topic == execution.topic)
    return offset_rows.offset_of(connection.execute(found).mappings().one())


_TAKEN_AWAY = (ExecutionState.LOST, ExecutionState.FINISHED)


def _move_for_anybody(
    connection: Connection, execution: Execution, _block: Block, to: Offset, at: int
) -> bool:
    """Move a topic for whoever says that it was his."""
    offset_rows.change(connection, execution.topic, offset_rows.columns_of(to), at)
    return True


def _end_whatever_it_is(
    connection: Connection,
    execution: Execution,
    state: ExecutionState,
    comment: str,
    at: int,
    rows: int | None,
) -> Row:
    states = [one.value for one in (ExecutionState.RUNNING, *_TAKEN_AWAY)]
    ended = execution_rows._end(connection, execution.id, states, state, comment, at, rows)
    assert ended is not None
    return ended


_claim = Executor._claim


def _claim_and_forget(executor: Executor, execution: Execution) -> Claimed:
    """Find the block anew each time, as if nobody had declared one."""
    claimed = _claim(executor, execution)
    return replace(claimed, offset=replace(claimed.offset, block=None))


_INSTEAD: dict[Guard | None, tuple[tuple[object, str, object], ...]] = {
    Guard.TERM: (
        (executions, "require_term", _any_term),
        (instances, "require_term", _any_term),
    ),
    Guard.ACCEPT: ((claims, "start", _start),),
    Guard.CLAIM: ((claims, "_refusal", _nobody_in_the_way),),
    Guard.COMMIT: (
        (executions, "owned", _owned_by_anybody),
        (executions, "move_on", _move_for_anybody),
        (failures, "owned", _owned_by_anybody),
        (execution_rows, "_end_running", _end_whatever_it_is),
    ),
    Guard.BLOCK: (
        (Executor, "_claim", _claim_and_forget),
        (
            offset_rows,
            "_DECLARE",
            Statement(offset_rows._STAMPED.where(offset_rows._IS_OURS).returning(offsets)),
        ),
    ),
}
"""What stands in a guard's place. The transaction's version is the lake's: `play` sees to it."""
