"""The store by noun: definitions, positions, executions, logs, people and processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidegate.model.entities import FailedRow, FailedState
from tidegate.model.execution import Execution, ExecutionState, Outcome, Stream
from tidegate.model.flow import Definition, Kind
from tidegate.model.instances import FOR_ALL, Instance, InstanceStatus, Lease, Sharing
from tidegate.model.looks import Look
from tidegate.model.messages import Channel, InstanceState
from tidegate.model.position import Block, Offset
from tidegate.model.records import Measures


class Delivery(NamedTuple):
    """A message as it came, not read yet; a tuple, since there are thousands of them a second."""

    channel: Channel
    body: bytes
    where: str
    """Its offset or its row, for the log."""


@dataclass(frozen=True)
class Rejection:
    """A row of `rejected_messages`: what came and could not be taken."""

    channel: Channel
    where: str
    reason: str
    body: bytes
    """Its beginning."""
    at: int


class RejectedMessages(Protocol):
    """Messages that were skipped, the newest of them."""

    def keep(self, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
        """Keep and count deliveries, each with the reason; one that is kept already, once."""

    def totals(self) -> Mapping[Channel, int]:
        """How many there were, by channel; more than are kept."""

    def counts(self) -> Mapping[Channel, Mapping[str, int]]:
        """How many are kept, by channel and reason."""

    def list(self, *, limit: int | None = None) -> Sequence[Rejection]:
        """Newest first."""


class OutgoingMessage(NamedTuple):
    """A message as the store's table takes it; a tuple like what becomes of it."""

    channel: Channel
    key: str
    body: bytes


class Listening(Protocol):
    """Hears of each put of messages."""

    def close(self) -> None: ...


class Messages(Protocol):
    """The table of the embedded bus. Writes are handed over, not waited for."""

    def put(self, outgoing: Sequence[OutgoingMessage], at: int) -> Future[None]: ...

    def take(
        self,
        channels: Sequence[Channel],
        keys: Sequence[str] | None,
        limit: int,
        known: Collection[int] = (),
    ) -> Sequence[Delivery]:
        """Give what is in the oldest rows, of some keys or of all, but for those that are known.

        They stay until they are deleted.
        """

    def delete(self, ids: Sequence[int]) -> Future[None]: ...

    def trim(self, before: int) -> Future[None]:
        """Delete what is older than a time."""

    def listen(self, wake: Callable[[], None]) -> Listening | None:
        """Wake after each put of any process; None where the database cannot tell."""


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

    def stamps(self) -> Mapping[str, object]:
        """Give, by instance, something that is another one after each write of its row."""

    def some(self, ids: Collection[str]) -> Mapping[str, Instance]:
        """Those of these that there are."""

    def of(self, process: str) -> Sequence[Instance]:
        """Those that one worker process hosts."""

    def register(
        self,
        instances: Sequence[Instance],
        lake: Sharing = FOR_ALL,
        ended: frozenset[str] = frozenset(),
    ) -> None:
        """Make those of one process of ours known, or known again: alive.

        Raises WrongUse where others have the lake. Who was silent for too long, or is one of
        `ended`, does not count, and cannot come back but by registering itself.
        """

    def beat(self, states: Mapping[str, InstanceState]) -> Future[None]:
        """Note heartbeats as received now; who is unknown is foreign, and a foreign one that was
        dead lives again. One of ours registers anew.

        Handed over, and written before anything that the caller writes later.
        """

    def set_status(self, process: str, status: InstanceStatus) -> None:
        """Move the instances of a process on; the dead stay what they are, until they leave."""

    def disable(self, instances: Collection[str], disabled: bool) -> None: ...

    def trim(self, before: int, term: int) -> None:
        """Forget instances that were unloaded before a time; raises Deposed."""


class Phases(Protocol):
    """What is known of the streams of executions."""

    def record(self, streams: Sequence[Stream], at: int) -> None: ...

    def of(self, execution_id: str) -> Sequence[Stream]: ...


@dataclass(frozen=True)
class FlowControl:
    """A row of `flow_controls`."""

    paused_at: int | None = None
    paused_by: str = ""
    paused_why: str = ""
    run_asked_at: int | None = None


class FlowControls(Protocol):
    """What people want of flows. Who, when and what stands in the flow's log, too."""

    def all(self) -> Mapping[str, FlowControl]: ...

    def pause(self, flow: str, by: str, why: str, at: int) -> None: ...

    def unpause(self, flow: str, by: str, at: int) -> None: ...

    def ask_to_run(self, flows: Sequence[str], by: str, at: int) -> None: ...

    def note(self, flow: str, by: str, what: str, at: int) -> None:
        """Keep any other action by hand in the flow's log."""


@dataclass(frozen=True)
class Applied:
    """A definition as it stands in the store."""

    definition: Definition
    version: int
    user: str
    updated_at: int


@dataclass(frozen=True)
class Commit:
    """Step 6: what an execution writes in the one transaction that moves its flow."""

    execution: Execution
    offset: Offset[Any]
    """The flow's row as the execution knows it: with the block that this commits."""
    block: Block[Any] | None
    """None where the flow stays put."""
    outcome: Outcome
    at: int

    def moved(self) -> Offset[Any]:
        """Give the flow's row once the block is done."""
        assert self.block is not None
        return self.offset.behind(self.block, self.outcome.rows, self.at)


@dataclass(frozen=True)
class Claimed:
    """Step 3a: what an execution begins with, all of one moment."""

    execution: Execution
    """As its row is now: running."""
    offset: Offset[Any]
    applied: Applied | None
    """The definition in force; None when the flow was removed."""


@dataclass(frozen=True)
class Committed:
    """Step 6: what an execution has become."""

    execution: Execution
    offset: Offset[Any]
    """The flow's row after it; with the next block, where one was declared."""
    streams: Sequence[Stream]


class Definitions(Protocol):
    """The definitions of the project's flows, as applied, with their history."""

    def current(self, kind: Kind | None = None) -> Mapping[str, Applied]:
        """Give those of the project; those of what is built beside others are left out."""

    def applied(self, flow: str) -> Applied | None:
        """Give the definition in force of any flow."""

    def stamp(self) -> object:
        """Give something that changes whenever what is current does."""

    def version(self, flow: str, version: int) -> Definition: ...

    def history(self, flow: str) -> Sequence[Applied]: ...

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

    def in_lane(self, lane: str) -> Sequence[Offset]:
        """Give the rows of all flows that write to one place."""

    def get(self, topic: str) -> Offset | None: ...

    def put(self, offset: Offset, at: int) -> None:
        """Write a row by hand; raises MutexError while the topic is held."""

    def see(self, looks: Sequence[Look], at: int) -> None:
        """Remember how far landed tables were seen to be; never back."""

    def resume(self, topic: str, at: int) -> None:
        """Let a stopped topic go on."""


class Blocks(Protocol):
    """The guards of a block, from claim to commit. Each call is one transaction."""

    def claim(
        self,
        execution: Execution,
        hostid: str,
        dead: frozenset[str] | None,
        at: int,
        lake: Sharing = FOR_ALL,
    ) -> Claimed:
        """Step 3a: assigned → running, and the mutex; raises MutexError, ClaimLost.

        Raises WrongUse where others have the lake. A worker has it by its registration, and no
        longer once it counts as dead: then ClaimLost.

        `dead` are the holders that no longer count. None when nobody has looked yet who is: then a
        refusal writes nothing, and the execution may be claimed again.
        """

    def declare(self, execution: Execution, block: Block[Any], at: int) -> Offset[Any]:
        """Step 3c: write the block; raises ClaimLost."""

    def commit(self, commit: Commit) -> Committed:
        """Step 6; gives the execution as it ended, with its streams.

        Raises ClaimLost and writes nothing when the flow is no longer ours.
        """

    def checkpoint(self, commit: Commit, next: Block[Any] | None) -> Committed:
        """Step 6 with the next block's 3c, and the execution goes on; the same guards as `commit`.

        Safe to say twice: one that was written already is given as it is.
        """

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        """End an execution that found no row: state NOJOBS, complete_to moved, mutex free."""

    def fail(
        self,
        execution: Execution,
        reason: str,
        trace: str,
        stop: bool,
        at: int,
        *,
        wait: int = 0,
        away: bool = False,
    ) -> None:
        """End an execution that failed: position unmoved, mutex free, the topic stopped or not.

        `wait` is how long it is to be left alone at least. One that failed over what it stands on
        was `away`: that counts as no failure of the flow.
        """

    def hand_back(self, execution: Execution, why: str, at: int) -> None:
        """End an execution that its instance gives up: lost, the block open, the mutex free."""

    def holders(self) -> Collection[str]:
        """Name the processes that hold something now."""

    def let_go(self, ended: Collection[str], at: int) -> None:
        """Free what processes held that have ended, and end their executions as lost."""

    def unlock(self, topic: str, at: int) -> str:
        """Free the mutex, end the open execution as lost, and tell who held it."""


class Executions(Protocol):
    """The life of executions around their blocks. Each call is one transaction."""

    def assign(self, execution: Execution) -> None:
        """Step 2: keep the execution before anybody hears of it."""

    def assign_all(
        self,
        executions: Sequence[Execution],
        term: int,
        enclosed: Sequence[OutgoingMessage],
        at: int,
    ) -> None:
        """Step 2 by a leader, for many at once, with the messages that tell of them.

        Raises Deposed and keeps none.
        """

    def hand_out(self, queued: Sequence[Execution], term: int) -> Sequence[Execution]:
        """Step 2 for executions that waited for an instance, each naming one now.

        Gives those that still were to be had; raises Deposed.
        """

    def lose(self, lost: Mapping[str, str], ended: frozenset[str], term: int, at: int) -> None:
        """End open executions, each with its reason; raises Deposed.

        What processes that have ended held is freed: nobody else may ever ask for it.
        """

    def unload(
        self, instances: Collection[str], ended: frozenset[str], why: str, term: int
    ) -> Sequence[Execution]:
        """Leader steps 1 to 3: unload the dead, and give the executions that they lose.

        `ended` are the hostids that can no longer write, or do no harm: their mutexes are freed,
        and what they run in their own name is lost, too. Raises Deposed.
        """

    def follow(self, moved: Sequence[tuple[Execution, Execution]], term: int, at: int) -> None:
        """Write what a foreign worker told, from what was read to what it becomes; else leave it.

        Raises Deposed.
        """

    def ask_to_cancel(self, execution_id: str, at: int) -> bool:
        """Let the instance that runs it end it; tell whether it was open."""

    def open(self, instances: Sequence[str] | None = None) -> Sequence[Execution]:
        """Those that have no end yet, oldest first, of all instances or of these."""

    def get(self, execution_id: str) -> Execution | None: ...

    def some(self, ids: Collection[str]) -> Mapping[str, Execution]:
        """Those of these that there are."""

    def begun(self, flows: Collection[str], since: int) -> Sequence[Execution]:
        """Those of some flows that were assigned at a time or later, oldest first."""

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

    def newest(self, flow: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """The last so many, oldest first; no more than these are read."""

    def latest(self, flow: str, *, limit: int | None = None) -> Sequence[Mapping[str, Any]]:
        """The latest entity of each `_id`, oldest first; with a limit the last so many of them."""


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

    def pending(self, topic: str, seq: int) -> int:
        """Count those that stay out once the commit of a block has settled them."""

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


class Retention(Protocol):
    """History that is old enough to go."""

    def trim(self, before: int, term: int | None, most: int) -> bool:
        """Forget up to so many rows of each sort from before a time; tell whether there are more.

        Without a term by whoever runs by hand; with one, raises Deposed.
        """


class Store(Protocol):
    """The truth, by noun."""

    @property
    def definitions(self) -> Definitions: ...

    @property
    def offsets(self) -> Offsets: ...

    @property
    def blocks(self) -> Blocks: ...

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
    def controls(self) -> FlowControls: ...
    @property
    def messages(self) -> Messages: ...

    @property
    def rejected(self) -> RejectedMessages: ...

    @property
    def rebuilds(self) -> Rebuilds: ...

    @property
    def retention(self) -> Retention: ...

    def close(self) -> None: ...
