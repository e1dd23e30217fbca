"""Where the next block of a base table ends: by file statistics, with a look inside few files.

Files that overlap in pos form a cluster; clusters lie apart, in order. A cluster whose statistics
are exact and that lies wholly inside the allowed range is taken as a whole, unread. Only a cluster
that crosses a bound, or whose statistics say too little, is scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate.model.position import GREATEST, START, Position


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


@dataclass(frozen=True, slots=True)
class Cut:
    """The first rows of a range: where they end, how many they are, whether more follow."""

    next: Position | None
    rows: int
    more: bool


class Scan(Protocol):
    """Take the first `want` rows in (after, upto], in order, with all that tie with the last."""

    def __call__(self, after: Position, upto: Position, want: int) -> Cut: ...


@dataclass(frozen=True)
class Found:
    """A block of the base table, found but not declared yet."""

    next: Position
    rows: int
    full: bool
    """More rows were eligible than the block took."""


def find_block(
    files: Iterable[FileStatistics], last: Position, upto: Position, maxstep: int, scan: Scan
) -> Found | None:
    """Find the block behind `last`: at most `maxstep` rows and ties, none past `upto`."""
    rows, end = 0, None
    for cluster in clusters(file for file in files if file.last > last and file.first <= upto):
        inside = all(file.exact and last < file.first and file.last <= upto for file in cluster)
        size = sum(file.rows for file in cluster)
        if inside and rows + size <= maxstep:
            rows, end = rows + size, max(file.last for file in cluster)
            continue
        if inside and end is not None and 2 * rows >= maxstep:
            # Half a block that ends where a file ends is worth more than a scan for the rest.
            return Found(end, rows, full=True)
        if rows >= maxstep:
            break
        cut = _look_inside(cluster, end or last, upto, maxstep - rows, scan)
        rows, end = rows + cut.rows, cut.next or end
        if cut.more:
            break
    else:
        return None if end is None else Found(end, rows, full=rows >= maxstep)
    return None if end is None else Found(end, rows, full=True)


def _look_inside(
    cluster: Sequence[FileStatistics], after: Position, upto: Position, want: int, scan: Scan
) -> Cut:
    reach = Position(max(file.greatest_pos for file in cluster), GREATEST)
    return scan(after, min(upto, reach), want)


def clusters(files: Iterable[FileStatistics]) -> list[list[FileStatistics]]:
    """Group the files that overlap in pos, in the order of their positions."""
    grouped: list[list[FileStatistics]] = []
    reach = -1
    for file in sorted(files, key=lambda file: file.least_pos):
        if grouped and file.least_pos <= reach:
            grouped[-1].append(file)
            reach = max(reach, file.greatest_pos)
        else:
            grouped.append([file])
            reach = file.greatest_pos
    return grouped
