"""The rows of a noun of the store as last read: only what was written since is read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Stamped(Protocol[T_co]):
    """Rows of one noun of the store, each with a stamp."""

    def stamps(self) -> Mapping[str, object]: ...

    def some(self, ids: Collection[str], /) -> Mapping[str, T_co]: ...


class RowCache(Generic[T]):
    """The rows as they were last read."""

    def __init__(self, noun: Stamped[T]) -> None:
        self._noun = noun
        self._stamps: Mapping[str, object] = {}
        self._rows: Mapping[str, T] = {}

    def read(self) -> Mapping[str, T]:
        """Give all rows as they are now; the same mapping as before when nothing was written."""
        known, stamps = self._stamps, self._noun.stamps()
        moved = {id for id, stamp in stamps.items() if known.get(id) != stamp}
        if moved or len(stamps) != len(known):
            # One that is written in between is read as it is then, and once more the next time.
            rows = {**self._rows, **(self._noun.some(moved) if moved else {})}
            self._rows = {id: rows[id] for id in stamps if id in rows}
            self._stamps = stamps
        return self._rows
