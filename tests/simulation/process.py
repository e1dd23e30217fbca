"""A process of the simulation: greenlets that wait for virtual time, and how it ends.

Threads are greenlets. Each call of a port switches away and comes back later; there the process
may have been stopped meanwhile, or killed, and then nothing of it ever goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from .heap import Heap


class Killed(BaseException):
    """The process is dead; nothing that runs in it may catch this."""


class Process:
    """Implements `ports.Runtime` for all that runs in it."""

    def __init__(
        self,
        name: str,
        number: int,
        heap: Heap,
        chance: Random,
        tell: Callable[[str], None],
        host: str,
    ) -> None:
        self.name = name
        self.host = host
        self.number = number
        self.alive = True
        self.skew = 0
        """How far its clock is off, in milliseconds."""
        self.slow = 0.0
        """How likely a call of the store hangs, for this process alone."""
        self.on_death: list[Callable[[], None]] = []
        self._heap = heap
        self._chance = chance
        self._tell = tell
        self._stopped_until = 0.0
        self._threads: set[greenlet] = set()
        self._numbers = 0

    # ports.Runtime

    def now(self) -> int:
        return int(self._heap.now) + self.skew

    def monotonic(self) -> float:
        return self._heap.now / 1000

    def sleep(self, seconds: float) -> None:
        self.wait(seconds * 1000)

    def uuid(self) -> str:
        self._numbers += 1
        return f"{self.number:08x}-0000-4000-8000-{self._numbers:012x}"

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Killed:
                pass
            except Exception as error:  # noqa: BLE001  (as a thread of a real process: it ends)
                self._tell(f"{self.name} ends: {name} failed with {error!r}")
                self._heap.after(0, self.kill)
            self._threads.discard(thread)

        thread = greenlet(run)
        self._threads.add(thread)
        self._heap.after(0, lambda: self._resume(thread))

    def mailbox(self) -> Letters:
        return Letters(self)

    # For those who play its ports.

    def wait(self, milliseconds: float) -> None:
        """Let time pass for the thread that calls."""
        thread = getcurrent()
        self._heap.after(milliseconds, lambda: self._resume(thread))
        self.suspend()

    def pass_by(self) -> None:
        """Let a moment pass, as every call of a port does."""
        self.require_life()
        self.wait(self._chance.random() * 2)

    def suspend(self) -> None:
        """Give the turn away until somebody resumes this thread."""
        self.require_life()
        _hub(self).switch()
        self.require_life()

    def resume(self, thread: greenlet) -> None:
        """Let a thread go on, now or when the process is no longer stopped."""
        self._heap.after(0, lambda: self._resume(thread))

    def after(self, milliseconds: float, event: Callable[[], None]) -> None:
        self._heap.after(milliseconds, event)

    def require_life(self) -> None:
        if not self.alive:
            raise Killed(self.name)

    def _resume(self, thread: greenlet) -> None:
        if not self.alive or thread.dead:
            return
        if self._stopped_until > self._heap.now:
            self._heap.at(self._stopped_until, lambda: self._resume(thread))
            return
        thread.parent = getcurrent()
        thread.switch()

    # For those who do things to it.

    @property
    def stopped(self) -> bool:
        return self._stopped_until > self._heap.now

    def stop(self, milliseconds: float) -> None:
        """Let nothing of it go on for some time."""
        self._stopped_until = max(self._stopped_until, self._heap.now + milliseconds)

    def kill(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for thread in list(self._threads):
            if thread:
                thread.parent = getcurrent()
                thread.throw(Killed(self.name))
        self._threads.clear()
        for event in self.on_death:
            event()


def _hub(process: Process) -> greenlet:
    hub = getcurrent().parent
    assert hub is not None, process.name
    return hub


class Letters:
    """Implements `ports.Mailbox` between the greenlets of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: deque[greenlet] = deque()

    @property
    def waits(self) -> bool:
        """Tell whether something lies here."""
        return bool(self._items)

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._process.resume(self._waiting.popleft())

    def receive(self, timeout: float | None) -> Any:
        process = self._process
        process.require_life()
        thread, late = getcurrent(), False

        def time_is_up() -> None:
            nonlocal late
            late = True
            self._wake(thread)

        if timeout is not None:
            process.after(timeout * 1000, time_is_up)
        while not self._items:
            if late:
                return None
            self._waiting.append(thread)
            process.suspend()
        return self._items.popleft()

    def _wake(self, thread: greenlet) -> None:
        if thread in self._waiting:
            self._waiting.remove(thread)
            self._process.resume(thread)
