"""Executions: one assignment of a flow to one instance, its states and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tidegate.model.failed import FailedRow
from tidegate.model.lineage import Definition
from tidegate.model.position import Position


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


class OffsetState(StrEnum):
    """What the last execution of a topic left behind."""

    NEW = "NEW"  # nothing ran yet
    RUNNING = "RUNNING"  # claimed; its holder moves it on
    DONE = "DONE"  # the last block is committed
    NOJOBS = "NOJOBS"  # there was nothing to take
    FAILED = "FAILED"  # the last execution failed; the next one tries again
    STOPPED = "STOPPED"  # a person has to look; `tidegate resume` lets it go on


@dataclass(frozen=True)
class Block:
    """The rows in (last, next] of a topic's base table, as declared: never computed again."""

    last: Position
    next: Position
    rows: int
    seq: int
    full: bool
    """More rows were eligible than the block took."""
    complete_to: int
    """What the topic's complete_to becomes with this block."""
    definition_version: int
    versions: Mapping[str, int] = field(default_factory=dict)
    """The Delta version of the base and of each listed table when the block was declared."""


@dataclass(frozen=True)
class Offset:
    """A topic's row in `offsets`: its position, its mutex and its open block."""

    topic: str
    last: Position
    seq: int = 0
    """The sequence number of the last committed block."""
    rows: int = 0
    run: int | None = None
    """When the row was last moved, in milliseconds."""
    processor: str = ""
    state: OffsetState = OffsetState.NEW
    hostid: str = ""
    """Who holds the mutex; empty when it is free."""
    execution_id: str | None = None
    claimed_at: int | None = None
    complete_to: int = 0
    failures: int = 0
    reason: str = ""
    """Why the topic failed or was stopped, in one sentence."""
    full: bool = False
    """The last committed block left eligible rows behind."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The Delta versions that the last committed load read."""
    definition_version: int | None = None
    """The definition that the last committed load used."""
    columns: Mapping[str, str] | None = None
    """The columns that the last committed load gave, with their types; None when not known."""
    stale: str = ""
    """What the table no longer agrees with, since when, and what mends it; empty when nothing."""
    vacuumed_at: int | None = None
    """When a VACUUM of the table was last tried."""
    block: Block | None = None
    """The declared block that is not committed yet."""

    @property
    def next(self) -> Position | None:
        return self.block.next if self.block else None

    def behind(self, block: Block, outcome: Outcome, at: int) -> Offset:
        """The row as it is once the block is in the table: moved, and held by nobody."""
        return replace(
            self,
            last=block.next,
            seq=block.seq,
            rows=outcome.rows,
            run=at,
            state=OffsetState.DONE,
            hostid="",
            execution_id=None,
            claimed_at=None,
            complete_to=max(self.complete_to, block.complete_to),
            failures=0,
            reason="",
            full=block.full,
            versions=block.versions,
            definition_version=block.definition_version,
            columns=outcome.columns or self.columns,
            block=None,
        )


@dataclass(frozen=True)
class Limits:
    """What the plan allows an execution to take, and what it may say afterwards."""

    as_of: int
    """The time at which was planned, in milliseconds."""
    frontier: Position
    """No row of the base at or below it will come any more."""
    bound: int
    """Rows from this time on have to wait."""
    complete_to: int
    """complete_to of the topic once every eligible row is taken."""
    retry: bool = False
    """Rows that failed may pass by now, even where there are no new ones."""


@dataclass(frozen=True)
class Execution:
    """A row of `etl_executions`."""

    id: str
    flow_kind: str
    flow_id: str
    topic: str
    state: ExecutionState
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
    configuration: Mapping[str, Any] = field(default_factory=dict)
    term: int | None = None
    tags: tuple[str, ...] = ()
    """What an instance must carry to be given it."""


@dataclass(frozen=True)
class Measures:
    """What the load saw of its own rows: a row of `etl_log`."""

    query_id: str
    rows: int
    max_id: int | None = None
    min_ts: int | None = None
    max_ts: int | None = None
    nulls: Mapping[str, int] | None = None
    figures: Mapping[str, Any] | None = None
    """What the table's own log query gave for the block."""


@dataclass(frozen=True)
class Work:
    """What a Runner gets: a claimed execution with its block and its definition."""

    execution: Execution
    definition: Definition
    block: Block
    pinned: bool
    """An earlier execution died over this block: read the versions that it declared."""
    waiting: tuple[FailedRow, ...] = ()
    """Rows that failed before, to be tried again with this block."""
    columns: Mapping[str, str] | None = None
    """The columns that the topic gave last, with their types."""
    beside: str = ""
    """The table that was built beside the topic's own, to be published in its place."""
    anew: bool = False
    """The whole table is written anew, and may take other columns than it had."""


@dataclass(frozen=True)
class Outcome:
    """What a Runner gives back: the load is in the table, exactly once."""

    rows: int
    committed_version: int | None
    measures: Measures | None
    note: str = ""
    """Anything that a person should know, such as a repeat that was skipped."""
    columns: Mapping[str, str] | None = None
    """The columns of the load, with their types; None when it was skipped."""
