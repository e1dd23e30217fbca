"""Whether a process is to end: asked for by a signal, heard by whoever waits."""

from __future__ import annotations

from collections.abc import Callable


class Lifecycle:
    """Whether a process is to end; those who wait are woken by what they left here."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], None]] = []
        self._asked = 0

    @property
    def stopping(self) -> bool:
        return self._asked > 0

    @property
    def in_a_hurry(self) -> bool:
        """Somebody asked twice: work is handed back, not finished."""
        return self._asked > 1

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Leave what wakes somebody; at once, if the end was asked for before he came."""
        self._wakes.append(wake)
        if self.stopping:
            wake()

    def stop(self) -> None:
        """Ask for the end; the second time, for an end at once."""
        self._asked += 1
        for wake in self._wakes:
            wake()
