"""The real time, threads and identity of this process."""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Generic, TypeVar

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
