"""The real time and identity of this process."""

from __future__ import annotations

import time
import uuid


class RealRuntime:
    """The clock on the wall, and random names."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def uuid(self) -> str:
        return str(uuid.uuid4())
