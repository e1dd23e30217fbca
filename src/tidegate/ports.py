"""The protocols between the parts: what services need of store, lake, runner and runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.model.blocks import Found
from tidegate.model.care import Care, Chores
from tidegate.model.execution import (
    Block,
    Execution,
    ExecutionState,
    Measures,
    Offset,
    Outcome,
    Work,
)
from tidegate.model.failed import FailedRow, FailedState
from tidegate.model.lineage import Definition
from tidegate.model.plan import Ahead, Look
from tidegate.model.position import Position


class Runtime(Protocol):
    """Time, identity and life of this process, given so that a simulation can give others."""

    def now(self) -> int:
        """Give the time in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Give seconds that never jump."""

    def sleep(self, seconds: float) -> None: ...

    def uuid(self) -> str: ...


class Holders(Protocol):
    """Who may hold a mutex, and whether they still live."""

    @property
    def me(self) -> str:
        """The hostid under which this process takes mutexes."""

    def lives(self, hostid: str) -> bool:
        """Tell whether that process, or the JVM it left behind, may still write."""

    def wait_for_end(self, hostid: str, seconds: float) -> bool:
        """Wait for what a dead process left running; tell whether it has ended."""


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
    rebuilt: Rebuilt | None = None


class Lineages(Protocol):
    """The definitions of the project, as applied, with their history."""

    def current(self) -> Mapping[str, Applied]:
        """Give the project's definitions; those of tables built beside others are left out."""

    def applied(self, topic: str) -> Applied | None:
        """Give the definition in force of any topic."""

    def version(self, topic: str, version: int) -> Definition: ...

    def history(self, topic: str) -> Sequence[Applied]: ...

    def apply(
        self, changed: Sequence[Definition], removed: Sequence[str], user: str, at: int
    ) -> None: ...


class Offsets(Protocol):
    """Positions and mutexes."""

    def all(self) -> Mapping[str, Offset]: ...

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

    def claim(self, execution: Execution, hostid: str, dead: frozenset[str], at: int) -> Offset:
        """Step 3a: assigned → running, and the mutex; raises MutexError, ClaimLost."""

    def declare(self, execution: Execution, block: Block, processor: str, at: int) -> Offset:
        """Step 3c: write the block; raises ClaimLost."""

    def commit(self, commit: Commit) -> None:
        """Step 6; raises ClaimLost and writes nothing when the topic is no longer ours."""

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        """End an execution that found no row: state NOJOBS, complete_to moved, mutex free."""

    def fail(self, execution: Execution, reason: str, trace: str, stop: bool, at: int) -> None:
        """End an execution that failed: position unmoved, mutex free, the topic stopped or not."""

    def tended(self, execution: Execution, before: Offset, care: Care, at: int) -> None:
        """End an execution that tidied the table: the topic is left as it was before."""

    def get(self, execution_id: str) -> Execution | None: ...

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


class Store(Protocol):
    """The truth, by noun."""

    @property
    def lineages(self) -> Lineages: ...

    @property
    def offsets(self) -> Offsets: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def datasets(self) -> Datasets: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def rebuilds(self) -> Rebuilds: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Recorded:
    """What a destination table's own log says of a topic's last write."""

    seq: int
    """0 when nothing was written under the topic's name."""
    last: Position | None = None
    next: Position | None = None
    version: int | None = None
    execution_id: str | None = None
    rows: int | None = None


class Looks(Protocol):
    """Looks at tables, without a JVM: versions, positions, recorded writes."""

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look: ...

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead: ...

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]: ...

    def recorded(self, definition: Definition) -> Recorded: ...


class Lake(Looks, Protocol):
    """Looks, and the bounds of blocks, which may need a scan."""

    def find_block(
        self, definition: Definition, last: Position, frontier: Position, bound: int
    ) -> Found | None: ...

    def drop(self, table: str) -> None:
        """Delete a table that was built beside another one, with its files."""


class Caretaker(Protocol):
    """Compaction and VACUUM of one table."""

    def chores(self, table: str, offset: Offset) -> Chores:
        """Say what a table needs, from its log alone."""

    def run(self, table: str, chores: Chores, pins: Sequence[int]) -> Care:
        """Do it; what open blocks of other topics pin of the table stays readable."""


class Runner(Protocol):
    """Steps 4 and 5 of a block, for one kind of flow."""

    def run(self, work: Work) -> Outcome: ...
