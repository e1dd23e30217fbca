"""What keeps the promises: each can be taken away, and then the plays must fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from tidegate.model.entities import task_started
from tidegate.model.execution import Execution, ExecutionState, Offset
from tidegate.services.executor import Executor
from tidegate.store import claims, execution_rows, executions, failures, instances, offset_rows
from tidegate.store.datasets import append
from tidegate.store.lineages import applied_definition
from tidegate.store.schema import etl_executions, offsets


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


def _in_any_state() -> Any:
    """Start an execution whatever has become of it since it was assigned."""
    columns = etl_executions.c
    start = update(etl_executions).where(columns.id == bindparam("on_id"))
    return start.returning(columns.id)


def _start(connection: Connection, execution: Execution, hostid: str, at: int) -> None:
    event = task_started(execution, applied_definition(connection, execution.topic), at)
    location = append(connection, execution.flow_id, [event], at)
    connection.execute(
        _in_any_state(),
        {
            "on_id": execution.id,
            "state": ExecutionState.RUNNING.value,
            "etl_worker": execution.etl_worker or hostid,
            "accepted_at": at,
            "started_at": at,
            "started_location": location,
            "updated_at": at,
        },
    )


def _nobody_in_the_way(*_: object) -> None:
    """Let everybody take every topic."""


def _owned_by_anybody(connection: Connection, execution: Execution) -> Offset:
    found = select(offsets).where(offsets.c.topic == execution.topic)
    return offset_rows.offset_of(connection.execute(found).mappings().one())


def _end_whatever_it_is(
    connection: Connection,
    execution: Execution,
    state: ExecutionState,
    comment: str,
    at: int,
    rows: int | None,
) -> RowMapping:
    states = [one.value for one in ExecutionState]
    ended = execution_rows._end(connection, execution.id, states, state, comment, at, rows)
    assert ended is not None
    return ended


_claim = Executor._claim


def _claim_and_forget(executor: Executor, execution: Execution) -> Offset:
    """Find the block anew each time, as if nobody had declared one."""
    return replace(_claim(executor, execution), block=None)


_INSTEAD: dict[Guard | None, tuple[tuple[object, str, object], ...]] = {
    Guard.TERM: (
        (executions, "require_term", _any_term),
        (instances, "require_term", _any_term),
    ),
    Guard.ACCEPT: ((claims, "start", _start),),
    Guard.CLAIM: ((claims, "_refusal", _nobody_in_the_way),),
    Guard.COMMIT: (
        (executions, "owned", _owned_by_anybody),
        (failures, "owned", _owned_by_anybody),
        (execution_rows, "_end_running", _end_whatever_it_is),
    ),
    Guard.BLOCK: (
        (Executor, "_claim", _claim_and_forget),
        (
            offset_rows,
            "_DECLARE",
            update(offsets).where(offset_rows._IS_OURS).returning(offsets),
        ),
    ),
}
"""What stands in a guard's place. The transaction's version is the lake's: `play` sees to it."""
