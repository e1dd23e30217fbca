"""Streams: what each phase of an execution took in, gave out and failed, and when.

Spark reads, transforms and loads a block in one pass, so the four streams of a table's execution
begin and end together; what differs is what goes in and what comes out:

    data-extract         the rows of the block, from the base table
    structure-transform  the rows that the views make of them
    data-transform       of those, the rows that pass the checks; the others failed
    data-load            the rows that are in the table
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.model.execution import Block, Execution
from tidegate.model.lineage import Definition
from tidegate.model.messages import (
    Phase,
    StreamFailed,
    StreamFinished,
    StreamProgress,
    StreamStarted,
    StreamStats,
)


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


def told(message: StreamProgress) -> Stream:
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


def streams_of(
    ended: Execution, definition: Definition, block: Block, *, rows: int, failed: int
) -> list[Stream]:
    """Give the four streams of a table's execution, which all lived as long as it did."""
    made = rows + failed
    views = ", ".join(definition.transforms)
    # A Reload reads whole tables, which nobody counts.
    read = block.rows or made
    counts = {
        Phase.DATA_EXTRACT: (definition.base, read, read, 0),
        Phase.STRUCTURE_TRANSFORM: (views, read, made, 0),
        Phase.DATA_TRANSFORM: (views, made, rows, failed),
        Phase.DATA_LOAD: (definition.table, rows, rows, 0),
    }
    return [
        Stream(
            ended.id,
            ended.etl_worker,
            phase.value,
            name,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            total_in=taken,
            total_out=given,
            total_failed=bad,
        )
        for phase, (name, taken, given, bad) in counts.items()
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
