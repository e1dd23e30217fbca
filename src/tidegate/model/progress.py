"""(execution, message) → execution: how far a foreign worker says that it has come.

    assigned ─accepted─▶ accepted ─started─▶ running ─▶ finished
       │                                        └─────▶ failed
       └─rejected─▶ rejected

The ends absorb: no message moves an execution out of one. Times are set once; one that comes late,
as a `started` behind its `finished`, is filled in and moves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.messages import (
    Accepted,
    ExecutionProgress,
    Failed,
    Finished,
    Rejected,
    Started,
)

_TAKEN = (ExecutionState.FINISHED, ExecutionState.FAILED)
"""The ends that an execution reaches by being accepted and started."""


def advance(execution: Execution, message: ExecutionProgress) -> Execution:
    """Give the execution as it is after its worker's message; the same one when nothing changes."""
    at, open = message.timestamp, execution.state.open
    if not open and execution.state not in _TAKEN:
        return execution
    match message:
        case Accepted():
            assigned = execution.state is ExecutionState.ASSIGNED
            state = ExecutionState.ACCEPTED if assigned else execution.state
            return replace(execution, state=state, accepted_at=_once(execution.accepted_at, at))
        case Started():
            state = ExecutionState.RUNNING if open else execution.state
            return replace(execution, state=state, started_at=_once(execution.started_at, at))
        case Rejected() if execution.state is ExecutionState.ASSIGNED:
            comment = f"rejected by {message.assignee}"
            return replace(
                execution, state=ExecutionState.REJECTED, finished_at=at, comment=comment
            )
        case Finished() if open:
            return replace(execution, state=ExecutionState.FINISHED, finished_at=at)
        case Failed() if open:
            return replace(
                execution, state=ExecutionState.FAILED, finished_at=at, comment=message.reason
            )
        case Rejected() | Finished() | Failed():
            return execution
        case _:
            assert_never(message)


def _once(known: int | None, told: int) -> int:
    return told if known is None else known
