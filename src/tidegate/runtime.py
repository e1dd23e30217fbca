"""The real time, threads and identity of this process, and which processes live.

A process that works holds an flock on a file of its own and passes it on to its JVM. The kernel
frees it when the last of the two is gone, however they ended: no clock, no guess.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import queue
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from tidegate.ports.outside import Runtime

T = TypeVar("T")
log = logging.getLogger(__name__)
LOOK_FOR_GARBAGE = 50_000
"""Objects made before Python looks for circles among them; its own 700 costs a busy process."""


def settle() -> None:
    """Let Python know that this process goes on: what there is by now stays, circles are few."""
    gc.freeze()
    gc.set_threshold(LOOK_FOR_GARBAGE)


class RealMailbox(Generic[T]):
    """A queue between threads."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        self._items.put(item)

    def receive(self, timeout: float | None) -> T | None:
        try:
            return self._items.get(timeout=timeout)
        except queue.Empty:
            return None


class RealRuntime:
    """The clock on the wall, threads, and random names."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException:
                log.exception("%s failed, so the process ends", name)
                os._exit(1)

        threading.Thread(target=run, name=name, daemon=True).start()

    def mailbox(self) -> RealMailbox[Any]:
        return RealMailbox()


_POLL_SECONDS = 0.1
_DEATH_SECONDS = 5.0
"""How long the kernel may take to clear away what was killed."""


class FlockHolders:
    """Locks in a folder of the project; a hostid is `host:pid:token`, the token names the file."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self._folder = folder
        self._runtime = runtime
        self._host = socket.gethostname()
        self._descriptor: int | None = None
        self._token = runtime.uuid().partition("-")[0]

    @property
    def me(self) -> str:
        return f"{self._host}:{os.getpid()}:{self._token}"

    def hold(self) -> int:
        """Take this process's own lock, and give the descriptor to pass on to its JVM."""
        if self._descriptor is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._descriptor = self._take(self._folder / f"{self._token}.lock")
        return self._descriptor

    def _take(self, path: Path) -> int:
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A sweep may have removed the file between the two calls: then it is nobody's lock.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                os.truncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} {os.getpgrp()}".encode())
                return descriptor
            os.close(descriptor)

    def release(self) -> None:
        """Give the lock back; the file goes with it."""
        if self._descriptor is not None:
            (self._folder / f"{self._token}.lock").unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def lives(self, hostid: str) -> bool:
        """Tell whether that holder may still write; one on another machine always may."""
        host, _, rest = hostid.partition(":")
        pid, _, token = rest.partition(":")
        if hostid == self.me or host != self._host:
            return True
        path = self._folder / f"{token}.lock"
        if not token.isalnum() or not path.exists():
            return _is_tidegate(pid)
        with _looked_at(path) as locked:
            return locked

    def wait_for_end(self, hostid: str, seconds: float) -> bool:
        """Wait while only the JVM of a dead process is left; a living process is not waited for."""
        pid = hostid.partition(":")[2].partition(":")[0]
        until = self._runtime.monotonic() + seconds
        while self.lives(hostid):
            if _runs(pid) or not self._is_here(hostid) or self._runtime.monotonic() > until:
                return False
            self._runtime.sleep(_POLL_SECONDS)
        return True

    def end(self, hostid: str) -> None:
        """Kill the process group of a holder that hangs, JVM and all, if it has one of its own.

        As long as somebody holds the lock, the numbers that its file names are still theirs.
        """
        path = self._folder / f"{hostid.rpartition(':')[2]}.lock"
        if hostid == self.me or not self._is_here(hostid) or not self.lives(hostid):
            return
        try:
            pid, group = map(int, path.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            # Not held by a worker of ours, or gone meanwhile: nothing that could be ended safely.
            return
        # A process that leads no group of its own shares it with a shell or a test.
        if pid == group:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self.wait_for_end(hostid, _DEATH_SECONDS)

    def _is_here(self, hostid: str) -> bool:
        return hostid.partition(":")[0] == self._host

    def _sweep(self) -> None:
        """Remove the files of processes that died: nobody holds them, and they say no more."""
        for path in self._folder.glob("*.lock"):
            with _looked_at(path) as locked:
                # Unlinked under the look's own lock: who takes the file meanwhile finds it gone.
                if not locked:
                    path.unlink(missing_ok=True)


@contextmanager
def _looked_at(path: Path) -> Iterator[bool]:
    """Tell whether somebody holds the file; while the block lasts nobody can begin to."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        # Shared, so that two who ask at the same time do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        yield True
    else:
        yield False
    finally:
        os.close(descriptor)


def _runs(pid: str) -> bool:
    """Tell whether a process of that number runs, and is no zombie."""
    if not pid.isdecimal():
        return False
    try:
        stat = (Path("/proc") / pid / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _is_tidegate(pid: str) -> bool:
    """Tell whether the process of that number is one of ours: numbers are given out again."""
    try:
        return _runs(pid) and b"tidegate" in (Path("/proc") / pid / "cmdline").read_bytes()
    except OSError:
        return False
