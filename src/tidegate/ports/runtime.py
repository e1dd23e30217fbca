"""Time, threads, mailboxes, and who holds a mutex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

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
