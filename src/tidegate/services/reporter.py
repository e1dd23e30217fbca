"""Step 7, report: says on ems.progress what the store knows already."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.messages import (
    Accepted,
    Failed,
    Finished,
    Message,
    Rejected,
    Started,
)
from tidegate.model.streams import Stream, messages_of
from tidegate.ports import Bus, Runtime


class Silence:
    """Reports nothing: whoever runs in the foreground looks on."""

    def began(self, execution: Execution) -> None: ...

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None: ...


class BusReporter:
    """Publishes what an instance does."""

    def __init__(self, bus: Bus, runtime: Runtime) -> None:
        self._bus = bus
        self._runtime = runtime

    def began(self, execution: Execution) -> None:
        where = (execution.id, execution.etl_worker, self._runtime.now())
        self._bus.publish([Accepted(*where), Started(*where)])

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None:
        at = execution.finished_at or self._runtime.now()
        where = (execution.id, execution.etl_worker, at)
        told = [message for stream in streams for message in messages_of(stream)]
        self._bus.publish([*told, _end(execution, where)])

    def rejected(self, execution_id: str, instance: str) -> None:
        self._bus.publish([Rejected(execution_id, instance, self._runtime.now())])


def _end(execution: Execution, where: tuple[str, str, int]) -> Message:
    match execution.state:
        case ExecutionState.FINISHED:
            return Finished(*where)
        case ExecutionState.REJECTED:
            return Rejected(*where)
        case _:
            return Failed(*where, execution.comment)
