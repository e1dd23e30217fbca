"""Virtual time: events in the order of their times, and of their making where times are equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Heap:
    """The one queue of events. Times are milliseconds since the epoch."""

    def __init__(self, start: float) -> None:
        self.now = start
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self.events = 0

    def at(self, time: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (max(time, self.now), self._made, event))

    def after(self, milliseconds: float, event: Callable[[], None]) -> None:
        self.at(self.now + milliseconds, event)

    def run(self, until: float, enough: Callable[[], bool]) -> None:
        """Let events happen up to a time, or until there is enough."""
        while self._events and self._events[0][0] <= until and not enough():
            time, _, event = heapq.heappop(self._events)
            self.now = time
            self.events += 1
            event()
        if not enough():
            self.now = max(self.now, until)
