"""The store by noun: definitions, positions, executions, and what they leave behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.model.care import Care
from tidegate.model.execution import (
    Block,
    Execution,
    ExecutionState,
    Measures,
    Offset,
    Outcome,
)
from tidegate.model.facts import Look
from tidegate.model.failed import FailedRow, FailedState
from tidegate.model.lineage import Definition
from tidegate.model.streams import Stream
from tidegate.ports.bus import Parcel


@dataclass(frozen=True)
class Applied:
    """A definition as it stands in the store."""

    definition: Definition
    version: int
    user: str
    updated_at: int


@dataclass(frozen=True)
class Rebuilt:
    """What a commit changes beyond its topic's own position: a table was written as a whole."""

    mends: str = ""
    """What the topic was stale for when the work began."""
    stale: Mapping[str, str] = field(default_factory=dict)
    """The topics that no longer agree with the table, with what to tell of each."""
    shadow: str = ""
    """The topic that was published: its failed rows are the topic's own from now on."""


@dataclass(frozen=True)
class Commit:
    """Step 6: what an execution writes in the one transaction that moves its topic."""

    execution: Execution
    offset: Offset
    """The topic's row as it will stand: moved, released."""
    block: Block
    outcome: Outcome
    at: int
    definition: Definition
    rebuilt: Rebuilt | None = None


@dataclass(frozen=True)
class Claimed:
    """Step 3a: what an execution begins with, all of one moment."""

    execution: Execution
    """As its row is now: running."""
    offset: Offset
    applied: Applied | None
    """The definition in force; None when the topic was removed."""
    waiting: tuple[FailedRow, ...] = ()
    """Rows that failed before, those with the fewest attempts first."""


@dataclass(frozen=True)
class Committed:
    """Step 6: what an execution has become."""

    execution: Execution
    streams: Sequence[Stream]


class Lineages(Protocol):
    """The definitions of the project, as applied, with their history."""

    def current(self) -> Mapping[str, Applied]:
        """Give the project's definitions; those of tables built beside others are left out."""

    def applied(self, topic: str) -> Applied | None:
        """Give the definition in force of any topic."""

    def stamp(self) -> object:
        """Give something that changes whenever what is current does."""

    def version(self, topic: str, version: int) -> Definition: ...

    def history(self, topic: str) -> Sequence[Applied]: ...

    def apply(
        self, changed: Sequence[Definition], removed: Sequence[str], user: str, at: int
    ) -> None: ...


class Offsets(Protocol):
    """Positions and mutexes."""

    def all(self) -> Mapping[str, Offset]: ...

    def stamps(self) -> Mapping[str, object]:
        """Give, by topic, something that is another one after each write of its row."""

    def some(self, topics: Collection[str]) -> Mapping[str, Offset]:
        """Those of these that there are."""

    def lane(self, topic: str) -> Sequence[Offset]:
        """Give the rows of all topics that write the topic's table."""

    def get(self, topic: str) -> Offset | None: ...

    def put(self, offset: Offset, at: int) -> None:
        """Write a row by hand; raises MutexError while the topic is held."""

    def see(self, looks: Sequence[Look], at: int) -> None:
        """Remember how far landed tables were seen to be; never back."""

    def unlock(self, topic: str, at: int) -> str:
        """Free the mutex, end the open execution as lost, and tell who held it."""

    def resume(self, topic: str, at: int) -> None:
        """Let a stopped topic go on."""


class Executions(Protocol):
    """The life of executions, from assign to commit. Each call is one transaction."""

    def assign(self, execution: Execution) -> None:
        """Step 2: keep the execution before anybody hears of it."""

    def assign_all(
        self, executions: Sequence[Execution], term: int, enclosed: Sequence[Parcel], at: int
    ) -> None:
        """Step 2 by a leader, for many at once, with the messages that tell of them.

        Raises Deposed and keeps none.
        """

    def hand_out(self, queued: Sequence[Execution], term: int) -> Sequence[Execution]:
        """Step 2 for executions that waited for an instance, each naming one now.

        Gives those that still were to be had; raises Deposed.
        """

    def claim(
        self, execution: Execution, hostid: str, dead: frozenset[str] | None, at: int
    ) -> Claimed:
        """Step 3a: assigned → running, and the mutex; raises MutexError, ClaimLost.

        `dead` are the holders that no longer count. None when nobody has looked yet who is: then a
        refusal writes nothing, and the execution may be claimed again.
        """

    def declare(self, execution: Execution, block: Block, processor: str, at: int) -> Offset:
        """Step 3c: write the block; raises ClaimLost."""

    def commit(self, commit: Commit) -> Committed:
        """Step 6; gives the execution as it ended, with its streams.

        Raises ClaimLost and writes nothing when the topic is no longer ours.
        """

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        """End an execution that found no row: state NOJOBS, complete_to moved, mutex free."""

    def fail(self, execution: Execution, reason: str, trace: str, stop: bool, at: int) -> None:
        """End an execution that failed: position unmoved, mutex free, the topic stopped or not."""

    def hand_back(self, execution: Execution, why: str, at: int) -> None:
        """End an execution that its instance gives up: lost, the block open, the mutex free."""

    def lose(self, lost: Mapping[str, str], ended: frozenset[str], term: int, at: int) -> None:
        """End open executions, each with its reason; raises Deposed.

        What processes that have ended held is freed: nobody else may ever ask for it.
        """

    def follow(self, told: Sequence[tuple[Execution, Execution]], term: int, at: int) -> None:
        """Write what a foreign worker told, from what was read to what it becomes; else leave it.

        Raises Deposed.
        """

    def ask_to_cancel(self, execution_id: str, at: int) -> bool:
        """Let the instance that runs it end it; tell whether it was open."""

    def open(self, instances: Sequence[str] | None = None) -> Sequence[Execution]:
        """Those that have no end yet, oldest first, of all instances or of these."""

    def tended(self, execution: Execution, before: Offset, care: Care, at: int) -> None:
        """End an execution that tidied the table: the topic is left as it was before."""

    def get(self, execution_id: str) -> Execution | None: ...

    def some(self, ids: Collection[str]) -> Mapping[str, Execution]:
        """Those of these that there are."""

    def list(
        self,
        *,
        flow: str | None = None,
        state: ExecutionState | None = None,
        limit: int | None = None,
    ) -> Sequence[Execution]:
        """Newest first."""


class Datasets(Protocol):
    """Task execution datasets: the append-only log of each flow."""

    def flows(self) -> Sequence[str]: ...

    def entities(
        self, flow: str, *, since: int = 0, limit: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Oldest first, each with `_location`."""

    def latest(self, flow: str) -> Sequence[Mapping[str, Any]]:
        """The latest entity of each `_id`."""


@dataclass(frozen=True)
class LogRow:
    """A row of `etl_log`."""

    topic: str
    ts: int
    measures: Measures
    execution_id: str

    @property
    def max_lag(self) -> float | None:
        """Seconds from the oldest row to its load."""
        least = self.measures.min_ts
        return None if least is None else (self.ts - least) / 1000


@dataclass(frozen=True)
class BlockRow:
    """A row of `blocks`: one committed block."""

    topic: str
    block: Block
    base_version: int | None
    committed_version: int | None
    execution_id: str
    at: int


class Journal(Protocol):
    """What committed loads left: the ETL log and the blocks."""

    def etl_log(self, topic: str | None = None, *, limit: int | None = None) -> Sequence[LogRow]:
        """Newest first."""

    def blocks(self, topic: str) -> Sequence[BlockRow]:
        """Oldest first."""


class Failures(Protocol):
    """Rows that stay out of their tables: set aside with a reason, tried again."""

    def waiting(self, topic: str, limit: int) -> Sequence[FailedRow]:
        """Those with the fewest attempts first."""

    def counts(self) -> Mapping[str, Mapping[FailedState, int]]: ...

    def pend(self, execution: Execution, seq: int, rows: Sequence[FailedRow], at: int) -> None:
        """Keep what the load of a block found out, until the commit makes it true.

        It takes the place of what was kept before; raises ClaimLost.
        """

    def retry(self, topic: str, at: int) -> int:
        """Let dead rows wait again and the next run try all that wait; tell how many do."""


@dataclass(frozen=True)
class Shadow:
    """A table that is built beside another one, to take its place."""

    topic: str
    definition: Definition
    offset: Offset
    """Its `stale` is what the topic was stale for when this was begun."""


class Rebuilds(Protocol):
    """Shadows: at most one a topic, under a name that is never used twice."""

    def of(self, topic: str) -> Shadow | None:
        """Give the shadow that a topic has now."""

    def begin(self, definition: Definition, at: int) -> None:
        """Make a shadow, unless its topic has one."""

    def abandon(self, shadow: str, at: int) -> None:
        """Leave a shadow to be swept away."""

    def abandoned(self) -> Sequence[str]:
        """Name the shadows that were published or abandoned, and not forgotten yet."""

    def forget(self, shadow: str) -> None:
        """Delete whatever the store holds of a shadow that nobody needs, but its executions."""
