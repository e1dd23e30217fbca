"""The protocols between the parts: what services need of store, bus, lake, runner and runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

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
from tidegate.model.instance import Instance, InstanceStatus
from tidegate.model.leadership import Lease
from tidegate.model.lineage import Definition
from tidegate.model.messages import InstanceState, Message, Topic
from tidegate.model.plan import Ahead, Look
from tidegate.model.position import Position
from tidegate.model.streams import Stream

T = TypeVar("T")


class Mailbox(Protocol, Generic[T]):
    """Where threads of a process leave things for one another: the only thing that they share."""

    def put(self, item: T) -> None: ...

    def receive(self, timeout: float | None) -> T | None:
        """Give the oldest item, waiting for one; None when the time is up."""


class Runtime(Protocol):
    """Time, identity and life of this process, given so that a simulation can give others."""

    def now(self) -> int:
        """Give the time in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Give seconds that never jump."""

    def sleep(self, seconds: float) -> None: ...

    def uuid(self) -> str: ...

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        """Let something go on beside this, until it returns or the process ends."""

    def mailbox(self) -> Mailbox[Any]: ...


class Holders(Protocol):
    """Who may hold a mutex, and whether they still live."""

    @property
    def me(self) -> str:
        """The hostid under which this process takes mutexes."""

    def lives(self, hostid: str) -> bool:
        """Tell whether that process, or the JVM it left behind, may still write."""

    def wait_for_end(self, hostid: str, seconds: float) -> bool:
        """Wait for what a dead process left running; tell whether it has ended."""

    def end(self, hostid: str) -> None:
        """Kill a worker process of this machine that is counted as dead, and its JVM with it."""


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

    def assign_all(self, executions: Sequence[Execution], term: int) -> None:
        """Step 2 by a leader, for many at once; raises Deposed and keeps none."""

    def hand_out(self, queued: Sequence[Execution], term: int) -> Sequence[Execution]:
        """Step 2 for executions that waited for an instance, each naming one now.

        Gives those that still were to be had; raises Deposed.
        """

    def claim(self, execution: Execution, hostid: str, dead: frozenset[str], at: int) -> Offset:
        """Step 3a: assigned → running, and the mutex; raises MutexError, ClaimLost."""

    def declare(self, execution: Execution, block: Block, processor: str, at: int) -> Offset:
        """Step 3c: write the block; raises ClaimLost."""

    def commit(self, commit: Commit) -> Sequence[Stream]:
        """Step 6; gives the streams of the execution.

        Raises ClaimLost and writes nothing when the topic is no longer ours.
        """

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        """End an execution that found no row: state NOJOBS, complete_to moved, mutex free."""

    def fail(self, execution: Execution, reason: str, trace: str, stop: bool, at: int) -> None:
        """End an execution that failed: position unmoved, mutex free, the topic stopped or not."""

    def hand_back(self, execution: Execution, why: str, at: int) -> None:
        """End an execution that its instance gives up: lost, the block open, the mutex free."""

    def lose(self, lost: Mapping[str, str], term: int, at: int) -> None:
        """End open executions, each with its reason; raises Deposed."""

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


class Leadership(Protocol):
    """Who leads, by one row and the store's clock."""

    def read(self) -> Lease: ...

    def take(self, holder: str, length: int) -> int | None:
        """Become the leader while nobody is; give the new term, or None."""

    def renew(self, term: int, length: int) -> Lease | None:
        """Move the end of the lease on where that is due; None when it is not ours any more."""

    def resign(self, term: int) -> None:
        """Let others lead at once."""


class Instances(Protocol):
    """The slots of worker processes, ours and foreign ones."""

    def all(self) -> Sequence[Instance]: ...

    def of(self, process: str) -> Sequence[Instance]:
        """Those that one worker process hosts."""

    def register(self, instances: Sequence[Instance]) -> None:
        """Make ours known, or known again: alive."""

    def beat(self, states: Mapping[str, InstanceState]) -> None:
        """Note heartbeats as received now; who was dead lives again, who is unknown is foreign."""

    def set_status(self, process: str, status: InstanceStatus) -> None: ...

    def disable(self, instances: Collection[str], disabled: bool) -> None: ...

    def bury(
        self, instances: Collection[str], ended: frozenset[str], why: str, term: int
    ) -> Sequence[Execution]:
        """Leader steps 1 to 3: unload the dead, and give the executions that they lose.

        `ended` are the hostids that can no longer write: their mutexes are freed. Raises Deposed.
        """

    def trim(self, before: int, term: int) -> None:
        """Forget instances that were unloaded before a time; raises Deposed."""


class Phases(Protocol):
    """What is known of the streams of executions."""

    def tell(self, streams: Sequence[Stream], at: int) -> None: ...

    def of(self, execution_id: str) -> Sequence[Stream]: ...


@dataclass(frozen=True)
class Wish:
    """A row of `flow_wishes`."""

    paused_at: int | None = None
    paused_by: str = ""
    paused_why: str = ""
    run_asked_at: int | None = None


class Wishes(Protocol):
    """What people want of flows. Who, when and what stands in the flow's log, too."""

    def all(self) -> Mapping[str, Wish]: ...

    def pause(self, flow: str, by: str, why: str, at: int) -> None: ...

    def unpause(self, flow: str, by: str, at: int) -> None: ...

    def ask_to_run(self, flows: Sequence[str], by: str, at: int) -> None: ...

    def note(self, flow: str, by: str, what: str, at: int) -> None:
        """Keep any other action by hand in the flow's log."""


@dataclass(frozen=True)
class Delivery:
    """A message as it came, not read yet."""

    topic: Topic
    body: bytes
    where: str
    """Its offset or its row, for the log."""


@dataclass(frozen=True)
class Rejection:
    """A row of `rejected_messages`: what came and could not be taken."""

    topic: Topic
    where: str
    reason: str
    body: bytes
    """Its beginning."""
    at: int


class Rejected(Protocol):
    """Messages that were skipped, the newest of them."""

    def keep(self, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
        """Keep deliveries, each with the reason."""

    def counts(self) -> Mapping[Topic, Mapping[str, int]]:
        """How many are kept, by topic and reason."""

    def list(self, *, limit: int | None = None) -> Sequence[Rejection]:
        """Newest first."""


@dataclass(frozen=True)
class Parcel:
    """A message as the store's table takes it."""

    topic: Topic
    key: str
    body: bytes


class Listening(Protocol):
    """An ear at the store."""

    def close(self) -> None: ...


class Messages(Protocol):
    """The table of the embedded bus. Writes are handed over, not waited for."""

    def put(self, parcels: Sequence[Parcel], at: int) -> Future[None]: ...

    def take(
        self, topics: Sequence[Topic], keys: Sequence[str] | None, limit: int
    ) -> Sequence[Delivery]:
        """Give the oldest, of some keys or of all; they stay until they are deleted."""

    def delete(self, ids: Sequence[int]) -> Future[None]: ...

    def trim(self, before: int) -> Future[None]:
        """Delete what is older than a time."""

    def listen(self, ring: Callable[[], None]) -> Listening | None:
        """Ring after each put of any process; None where the database cannot tell."""


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
    def instances(self) -> Instances: ...

    @property
    def leadership(self) -> Leadership: ...

    @property
    def phases(self) -> Phases: ...

    @property
    def wishes(self) -> Wishes: ...
    @property
    def messages(self) -> Messages: ...

    @property
    def rejected(self) -> Rejected: ...

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

    def interrupt(self, execution_id: str) -> None:
        """Let a run fail where it stands; nothing happens when it is not running."""


class Reporter(Protocol):
    """Step 7: told of what an execution does, once the store knows it."""

    def began(self, execution: Execution) -> None: ...

    def committed(self, streams: Sequence[Stream]) -> None: ...


class Inbox(Protocol):
    """Messages for one reader, each at least once, in order within a topic."""

    def receive(self, timeout: float) -> Sequence[Delivery]:
        """Wait for messages; nothing at the timeout, at a wake, or while the bus is away."""

    def done(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these are handled: they do not come again."""

    def close(self) -> None:
        """Let the next reader have what is not done."""


class Bus(Protocol):
    """The fast path between manager and instances: losing a message loses nothing."""

    def create_topics(self) -> None:
        """Make what is missing; raises BusError when what is there does not fit."""

    def publish(self, messages: Sequence[Message]) -> None:
        """Hand messages over, without waiting and without failing."""

    def manager_inbox(self) -> Inbox:
        """Read ems.heartbeat and ems.progress, from where the last manager came to."""

    def worker_inbox(self, instances: Sequence[str]) -> Inbox:
        """Read ems.control, what is for these instances."""

    def wake(self) -> None:
        """End waits early: on this machine, or with a broker in this process."""

    def trim(self, before: int) -> None:
        """Drop what is older than a time, where no broker does it."""

    def close(self) -> None:
        """Send what waits, then let go; the inboxes are closed before."""
