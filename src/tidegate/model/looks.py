"""What was seen of a table: how far it is, its files, and what the store remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tidegate.model.position import GREATEST, START, Offset, OffsetState, Position


class Look(NamedTuple):
    """What was seen of a table in the lake at one time; a tuple, as thousands a second are made."""

    table: str
    looked_at: int
    exists: bool = True
    positioned: bool = True
    """It has the columns that carry a position."""
    newest: Position | None = None
    """Its greatest position; None when it holds no row."""
    unread: int = 0
    """Rows without pos or id: nobody can tell where they belong."""
    version: int = -1
    data_version: int = -1
    """The last version that brought other data: compaction and the like left out."""
    trouble: str = ""
    """Why it cannot be read, although it is there."""

    def again(self, at: int) -> Look:
        """Give the same as seen at another time."""
        return Look(self.table, at, *self[2:])


@dataclass(frozen=True, slots=True)
class Ahead:
    """What lies in the base table beyond a topic's last position."""

    first: int | None
    """The pos of the first such row; None when there is none."""
    rows: int = 0
    """About how many there are, by the files' statistics."""


SOURCE = "source"
"""The processor of a table that others write, or that is landed."""


def after_look(known: Offset | None, look: Look) -> Offset | None:
    """Give the row of a landed table after a look; None when the look changes nothing."""
    if not look.exists:
        return None
    before = known or Offset(look.table, START, look.table)
    versions = {look.table: look.version}
    last = before.last if look.newest is None else max(before.last, look.newest)
    seen = before.last == last and before.versions == versions
    if seen and before.processor == SOURCE and before.state is OffsetState.DONE:
        return None
    return replace(before, last=last, versions=versions, processor=SOURCE, state=OffsetState.DONE)


class FileStatistics(NamedTuple):
    """What a table's log says of one data file; a tuple, since there may be ten thousand."""

    rows: int
    least_pos: int
    greatest_pos: int
    least_id: int
    greatest_id: int
    exact: bool
    """Every row counts: none deleted since, none without pos or id."""

    @property
    def first(self) -> Position:
        return Position(self.least_pos, self.least_id)

    @property
    def last(self) -> Position:
        return Position(self.greatest_pos, self.greatest_id)


def unknown(rows: int) -> FileStatistics:
    """Describe a file whose statistics are missing: its rows may lie anywhere."""
    return FileStatistics(rows, START.pos, GREATEST, START.id, GREATEST, exact=False)
