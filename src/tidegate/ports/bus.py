"""Messages between manager and instances, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate.model.messages import Message, Topic


class Delivery(NamedTuple):
    """A message as it came, not read yet; a tuple, since there are thousands of them a second."""

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
        """Keep and count deliveries, each with the reason; one that is kept already, once."""

    def totals(self) -> Mapping[Topic, int]:
        """How many there were, by topic; more than are kept."""

    def counts(self) -> Mapping[Topic, Mapping[str, int]]:
        """How many are kept, by topic and reason."""

    def list(self, *, limit: int | None = None) -> Sequence[Rejection]:
        """Newest first."""


class Parcel(NamedTuple):
    """A message as the store's table takes it; a tuple like what becomes of it."""

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
        self,
        topics: Sequence[Topic],
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

    def listen(self, ring: Callable[[], None]) -> Listening | None:
        """Ring after each put of any process; None where the database cannot tell."""


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

    def create_topics(self) -> None:
        """Make what is missing; raises BusError when what is there does not fit."""

    def publish(self, messages: Sequence[Message]) -> None:
        """Hand messages over, without waiting and without failing."""

    def enclose(self, messages: Sequence[Message]) -> Sequence[Parcel]:
        """Give what the store is to write in one transaction with what the messages tell of.

        That is nothing where a broker carries them. What was enclosed has to be announced.
        """

    def announce(self, messages: Sequence[Message]) -> None:
        """Let messages be read, now that the store has what they tell of: ring, or send them."""

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
