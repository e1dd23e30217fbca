"""What is outside of the control plane: the lake, the bus, time, threads, and who holds a mutex."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tidegate.model.execution import Landed
from tidegate.model.looks import Ahead, Look
from tidegate.model.messages import Message
from tidegate.model.position import Position
from tidegate.ports.store import Delivery, OutgoingMessage


@dataclass(frozen=True)
class Recorded:
    """What a table's own log says of a writer's last write."""

    seq: int
    """0 when nothing was written under the writer's name."""
    last: Position | None = None
    next: Position | None = None
    version: int | None = None
    execution_id: str | None = None
    rows: int | None = None


class Looks(Protocol):
    """Looks at tables of the lake, without a JVM: versions, positions, recorded writes."""

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look: ...

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead: ...

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]: ...

    def recorded(self, table: str, writer: str) -> Recorded:
        """Read what a table's own log says of the last write under a writer's name."""

    def require_there(self) -> None:
        """Raise LakeAway where nothing of the lake is to be seen: a table is not gone by that."""


@dataclass(frozen=True)
class Batch:
    """Rows for a table, and under whose name: one batch lands once, however often it is tried."""

    table: str
    writer: str
    """The flow's id; of what it lands, `seq` tells one batch from the next."""
    seq: int
    pos: int
    """What every row gets: greater than any that the table holds, and declared with the block."""
    complete_to: int
    """The time before which everything has arrived with this batch."""
    execution_id: str
    keys: tuple[str, ...] = ()
    """Columns by which rows take the place of older ones; appended where there are none."""


@dataclass(frozen=True)
class LandedBatch:
    """What came of a batch: its rows, and how far the table is with it."""

    rows: int
    landed: Landed
    """For the Outcome of the execution: the table's own position moves in its commit."""
    skipped: bool = False
    """It was in the table already, from an earlier try."""


class Landing(Protocol):
    """Brings rows into tables of the lake, each batch exactly once."""

    def pos_for(self, table: str) -> int:
        """Give the pos for a batch that is about to be declared: now, and never back.

        Whoever asks holds the lane of the table until the batch is committed.
        """

    def land(self, batch: Batch, rows: Any) -> LandedBatch:
        """Write the rows (a Spark DataFrame, or an Arrow table), unless they are in; raises
        FlowFailed, TopicStopped.
        """


class Inbox(Protocol):
    """Messages for one reader, each at least once, in order within a topic."""

    def receive(self, timeout: float) -> Sequence[Delivery]:
        """Wait for messages; nothing at the timeout, at a wake, or while the bus is away."""

    def done(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these are handled: they do not come again, once all sent with them are."""

    def close(self) -> None:
        """Let the next reader have what is not done."""


class Bus(Protocol):
    """The fast path between manager and instances: losing a message loses nothing."""

    def create_channels(self) -> None:
        """Make what is missing; raises BusError when what is there does not fit."""

    def publish(self, messages: Sequence[Message]) -> None:
        """Hand messages over, without waiting and without failing."""

    def enclose(self, messages: Sequence[Message]) -> Sequence[OutgoingMessage]:
        """Give what the store is to write in one transaction with what the messages tell of.

        That is nothing where a broker carries them. What was enclosed has to be announced.
        """

    def announce(self, messages: Sequence[Message]) -> None:
        """Let messages be read, now that the store has what they tell of: wake readers, or send."""

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
