"""Executions: one assignment of a flow to one instance, its states, its outcome, its streams.

    assigned ─accepted─▶ accepted ─started─▶ running ─▶ finished
       │                                        └─────▶ failed
       ├─rejected─▶ rejected
       └─(any open state) its holder is gone ─▶ lost

The ends absorb: no message moves an execution out of one. Times are set once; one that comes late,
as a `started` behind its `finished`, is filled in and moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, assert_never

from tidegate.model.flow import Definition, Flow, Kind, Operation
from tidegate.model.messages import (
    Accepted,
    ExecutionProgress,
    Failed,
    Finished,
    Phase,
    Rejected,
    Started,
    StreamFailed,
    StreamFinished,
    StreamProgress,
    StreamStarted,
    StreamStats,
)
from tidegate.model.position import Block, Offset, Position
from tidegate.model.records import Record


class ExecutionState(StrEnum):
    """Where an execution stands, and who moves it on."""

    ASSIGNED = "assigned"  # by the planner; the instance accepts or rejects it
    ACCEPTED = "accepted"  # by the instance; it starts
    RUNNING = "running"  # by the instance; it commits an end
    FINISHED = "finished"  # by the instance, with the commit; an end
    FAILED = "failed"  # by the instance; an end, retried by policy
    REJECTED = "rejected"  # by the instance that could not take it; an end
    LOST = "lost"  # by whoever finds its holder dead; an end that spends no attempt

    @property
    def open(self) -> bool:
        return self in OPEN


NOTHING_TO_DO = "nothing to do"
"""The comment of an execution that found no row to take."""
OPEN = frozenset({ExecutionState.ASSIGNED, ExecutionState.ACCEPTED, ExecutionState.RUNNING})


@dataclass(frozen=True)
class Execution:
    """A row of `etl_executions`."""

    id: str
    flow_kind: Kind
    flow_id: str
    topic: str
    """Under which the flow keeps its position; empty where it keeps none here."""
    state: ExecutionState
    lane: str = ""
    operation: Operation = Operation.BUILD
    attempt: int = 1
    retry_of: str | None = None
    etl_worker: str = ""
    assigned_at: int | None = None
    accepted_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    cancel_requested_at: int | None = None
    comment: str = ""
    rows: int | None = None
    failed: int = 0
    """How many entities failed, so far as it has committed."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    term: int | None = None
    tags: tuple[str, ...] = ()
    """What an instance must carry to be given it."""


@dataclass(frozen=True)
class Work:
    """What a Runner gets: a claimed execution with its block and its definition."""

    execution: Execution
    definition: Definition
    offset: Offset[Any]
    """The flow's row as it was claimed, with the block in it once that is declared."""
    block: Block[Any]
    died: bool = False
    """An earlier execution died over this block: what it wrote may be there already."""


@dataclass(frozen=True)
class Counts:
    """What one stream of a phase took in, gave out and failed."""

    phase: Phase
    name: str
    taken: int
    given: int
    failed: int = 0


@dataclass(frozen=True)
class Landed:
    """How far a landed table is with this block; never back."""

    table: str
    last: Position
    complete_to: int
    version: int


@dataclass(frozen=True)
class Outcome:
    """What a Runner gives back: the block is done, and what the commit is to write beside it."""

    rows: int
    note: str = ""
    """Anything that a person should know, such as a repeat that was skipped."""
    version: int | None = None
    """The version of the table that the block was written to, where it has versions."""
    streams: Sequence[Counts] = ()
    """Of the whole execution so far, also where earlier blocks of it are committed."""
    entities: Sequence[Mapping[str, Any]] = ()
    """For the flow's log, in order, before the entity of its end."""
    failed: int = 0
    """How many of these entities failed, beside the rows that were set aside."""
    landed: Sequence[Landed] = ()
    records: Sequence[Record] = ()


@dataclass(frozen=True)
class Stream:
    """A row of `etl_phase_executions`; what was not told yet is None."""

    execution_id: str
    instance_id: str
    phase: str = ""
    name: str = ""
    started_at: int | None = None
    finished_at: int | None = None
    failed_at: int | None = None
    comment: str = ""
    total_in: int | None = None
    total_out: int | None = None
    total_failed: int | None = None


def stream_of(message: StreamProgress) -> Stream:
    """Give the row as far as one message tells it."""
    stream = Stream(message.execution_id, message.instance_id, message.phase.value, message.stream)
    match message:
        case StreamStarted():
            return replace(stream, started_at=message.timestamp)
        case StreamFinished():
            return replace(stream, finished_at=message.timestamp)
        case StreamFailed():
            return replace(stream, failed_at=message.timestamp, comment=message.error)
        case StreamStats():
            return replace(
                stream,
                total_in=message.total_in,
                total_out=message.total_out,
                total_failed=message.total_failed,
            )


def streams_of(execution: Execution, counts: Iterable[Counts]) -> list[Stream]:
    """Give the rows of streams that live as long as their execution does."""
    return [
        Stream(
            execution.id,
            execution.etl_worker,
            one.phase.value,
            one.name,
            started_at=execution.started_at,
            finished_at=execution.finished_at,
            total_in=one.taken,
            total_out=one.given,
            total_failed=one.failed,
        )
        for one in counts
    ]


def messages_of(stream: Stream) -> list[StreamProgress]:
    """Say a finished stream in the messages of the protocol."""
    id, phase, at = stream.execution_id, Phase(stream.phase), stream.finished_at or 0
    where = (id, phase, stream.name, stream.instance_id)
    return [
        StreamStarted(*where, stream.started_at or at),
        StreamStats(
            *where, at, stream.total_in or 0, stream.total_out or 0, stream.total_failed or 0
        ),
        StreamFinished(*where, at),
    ]


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


def _once(known: int | None, at: int) -> int:
    return at if known is None else known


def new_execution(
    id: str,
    flow: Flow,
    at: int,
    *,
    operation: Operation = Operation.BUILD,
    earlier: Sequence[Execution] = (),
    configuration: Mapping[str, Any] | None = None,
    worker: str = "",
    term: int | None = None,
) -> Execution:
    """Make the execution of a flow; `earlier` is the one that it goes on from, if there is one."""
    return Execution(
        id=id,
        flow_kind=flow.kind,
        flow_id=flow.id,
        topic=flow.id,
        state=ExecutionState.ASSIGNED,
        lane=flow.lane,
        operation=operation,
        attempt=earlier[0].attempt + 1 if earlier else 1,
        retry_of=earlier[0].id if earlier else None,
        etl_worker=worker,
        assigned_at=at,
        configuration=configuration_of(flow, operation, configuration or {}),
        term=term,
    )


def configuration_of(
    flow: Flow, operation: Operation, more: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Say to a worker what to run; it finds the definition in the store."""
    return {
        "kind": flow.kind.value,
        "id": flow.id,
        "lane": flow.lane,
        "operation": operation.value,
        **more,
    }


def flow_in(configuration: Any) -> Flow | None:
    """Read which flow of ours a configuration names; None where it names none in full."""
    if not isinstance(configuration, Mapping):
        return None
    kind, id, lane = (configuration.get(name) for name in ("kind", "id", "lane"))
    if not isinstance(kind, str) or not isinstance(id, str) or not isinstance(lane, str):
        return None
    if kind not in _OURS:
        return None
    return Flow(id, Kind(kind), lane)


def operation_in(configuration: Mapping[str, Any]) -> Operation:
    """Read what a configuration wants done; to build is what one that does not say wants."""
    given = configuration.get("operation")
    return Operation(given) if given in set(Operation) else Operation.BUILD


_OURS = frozenset(kind.value for kind in Kind if kind.ends_in_store)


def queued(id: str, configuration: Mapping[str, Any], tags: Sequence[str], at: int) -> Execution:
    """Make an execution for a foreign worker, which waits until an instance is free for it."""
    return Execution(
        id=id,
        flow_kind=Kind.EXTERNAL,
        flow_id=Kind.EXTERNAL.value,
        topic="",
        lane=id,
        state=ExecutionState.ASSIGNED,
        assigned_at=at,
        configuration=configuration,
        tags=tuple(tags),
    )


def queued_again(ended: Execution, at: int) -> Execution:
    """Make the successor of a foreign execution that was lost or refused.

    Its id follows from the one before it: whoever finds the loss makes the same one.
    """
    return replace(
        ended,
        id=_next_id(ended.id),
        state=ExecutionState.ASSIGNED,
        attempt=ended.attempt + 1,
        retry_of=ended.id,
        etl_worker="",
        assigned_at=at,
        accepted_at=None,
        started_at=None,
        finished_at=None,
        comment="",
        term=None,
    )


def _next_id(id: str) -> str:
    digits = sha256(id.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
