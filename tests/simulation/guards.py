"""What keeps the promises: each can be taken away, and then the plays must fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, bindparam, select, update

from tidegate.control.executor import Executor
from tidegate.model.entities import task_started
from tidegate.model.execution import Execution, ExecutionState, Landed
from tidegate.model.flow import Definition
from tidegate.model.instances import Sharing
from tidegate.model.position import Block, Offset
from tidegate.ports.store import Claimed, Commit, Committed
from tidegate.store import blocks, datasets, executions, fleet, positions
from tidegate.store.datasets import append
from tidegate.store.schema import etl_executions, offsets
from tidegate.store.writer import Row, Statement


class Guard(Enum):
    """A guard, by its name in the design."""

    TERM = "term on leader writes"
    ACCEPT = "accept"
    CLAIM = "claim"
    COMMIT = "conditional commit"
    BLOCK = "declared block"
    TRANSACTION = "transaction version"
    CHECKPOINT = "conditional checkpoint"
    NEXT = "next block declared with the checkpoint"
    LANDED = "landed position in the commit"
    LAKE = "one host has a lake whose log is not atomic"
    AFAR = "the dead of another host let go where one commit wins"


MOST_NEEDED = 5_000
"""Without a guard the plays must fail within so many seeds."""
PINNED: Mapping[Guard, int] = {
    Guard.TERM: 92,
    Guard.ACCEPT: 572,
    Guard.CLAIM: 11,
    Guard.COMMIT: 17,
    Guard.BLOCK: 2,
    Guard.TRANSACTION: 5,
    Guard.CHECKPOINT: 123,
    Guard.NEXT: 1,
    Guard.LANDED: 1,
    Guard.LAKE: 3,
    Guard.AFAR: 45,
}
"""A seed that fails without each, found by `python -m tests.simulation`: quickly played."""


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
    return executions.execution_of(row)


def _nobody_in_the_way(*_: object) -> None:
    """Let everybody take every topic."""


def _owned_by_anybody(connection: Connection, execution: Execution) -> Offset:
    found = select(offsets).where(offsets.c.topic == execution.topic)
    return positions.offset_of(connection.execute(found).mappings().one())


_TAKEN_AWAY = (ExecutionState.LOST, ExecutionState.FINISHED)


def _move_for_anybody(
    connection: Connection, execution: Execution, _block: Block, to: Offset, at: int
) -> bool:
    """Move a topic for whoever says that it was his."""
    positions.change(connection, execution.topic, positions.columns_of(to), at)
    return True


def _end_whatever_it_is(
    connection: Connection,
    execution: Execution,
    state: ExecutionState,
    comment: str,
    at: int,
    more: Mapping[str, int] | None = None,
) -> Row:
    states = [one.value for one in (ExecutionState.RUNNING, *_TAKEN_AWAY)]
    ended = executions._end(connection, execution.id, states, state, comment, at, more)
    assert ended is not None
    return ended


_claim = Executor._claim


def _claim_and_forget(executor: Executor, execution: Execution) -> Claimed:
    """Find the block anew each time, as if nobody had declared one."""
    claimed = _claim(executor, execution)
    return replace(claimed, offset=replace(claimed.offset, block=None))


_checkpoint = blocks._checkpoint


def _checkpoint_of_anybody(
    connection: Connection, commit: Commit, next: Block[Any] | None
) -> Committed:
    """Move a flow on, and declare its next block, for whoever says that it was his."""
    with ExitStack() as stack:
        for place, name, instead in _FOR_ANYBODY:
            stack.enter_context(patch.object(place, name, instead))
        return _checkpoint(connection, commit, next)


def _declare_for_anybody(
    connection: Connection, execution: Execution, block: Block[Any], at: int
) -> Offset[Any]:
    changes = {**positions.block_columns(block), "processor": block.processor}
    positions.change(connection, execution.topic, changes, at)
    return _owned_by_anybody(connection, execution)


def _go_on_whatever_it_is(
    connection: Connection, execution: Execution, rows: int, failed: int, at: int
) -> Execution:
    states = executions._while_in([one.value for one in (ExecutionState.RUNNING, *_TAKEN_AWAY)])
    more = {"more_rows": rows, "more_failed": failed, "updated_at": at}
    row = executions._COUNT.first(connection, {"on_id": execution.id, **states, **more})
    assert row is not None
    return executions.execution_of(row)


_FOR_ANYBODY: tuple[tuple[object, str, object], ...] = (
    (blocks, "owned", _owned_by_anybody),
    (blocks, "move_on", _move_for_anybody),
    (blocks, "declare", _declare_for_anybody),
    (executions, "go_on", _go_on_whatever_it_is),
)


def _checkpoint_and_forget(
    connection: Connection, commit: Commit, next: Block[Any] | None
) -> Committed:
    """Let an execution go on with a block that nobody has written down."""
    committed = _checkpoint(connection, commit, None)
    return replace(committed, offset=replace(committed.offset, block=next))


def _land_nothing(connection: Connection, landed: Landed, at: int) -> None:
    """Leave it to looks at the lake to find out how far a table is."""


def _nobody_else(*_: object) -> None:
    """Let everybody have the lake."""


_INSTEAD: dict[Guard | None, tuple[tuple[object, str, object], ...]] = {
    Guard.TERM: (
        (executions, "require_term", _any_term),
        (fleet, "require_term", _any_term),
    ),
    Guard.ACCEPT: ((executions, "start", _start),),
    Guard.CLAIM: ((blocks, "_refusal", _nobody_in_the_way),),
    Guard.COMMIT: (
        (blocks, "owned", _owned_by_anybody),
        (blocks, "move_on", _move_for_anybody),
        (datasets, "owned", _owned_by_anybody),
        (executions, "_end_running", _end_whatever_it_is),
    ),
    Guard.BLOCK: (
        (Executor, "_claim", _claim_and_forget),
        (
            positions,
            "_DECLARE",
            Statement(positions._STAMPED.where(positions._IS_OURS).returning(offsets)),
        ),
    ),
    Guard.CHECKPOINT: ((blocks, "_checkpoint", _checkpoint_of_anybody),),
    Guard.NEXT: ((blocks, "_checkpoint", _checkpoint_and_forget),),
    Guard.LANDED: ((blocks, "land", _land_nothing),),
    Guard.LAKE: ((fleet, "clash", _nobody_else), (blocks, "lake_lost", _nobody_else)),
    Guard.AFAR: ((Sharing, "one_commit_wins", False),),
}
"""What stands in a guard's place. The transaction's version is the lake's: `play` sees to it."""
