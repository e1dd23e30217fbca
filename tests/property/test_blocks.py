"""Blocks over random files, against the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.looks import FileStatistics
from tidegate.model.position import GREATEST, START, Position, before
from tidegate.tables.block_finder import Found, clusters, find_block

from .lake import File, Row, Scan
from .profile import examples

_POSES = st.one_of(st.integers(0, 12), st.integers(0, 200), st.just(GREATEST))
_IDS = st.one_of(st.integers(0, 3), st.integers(0, 50), st.sampled_from([GREATEST, GREATEST - 1]))
_POSITIONS = st.builds(Position, _POSES, _IDS)
_SIZES = st.one_of(st.integers(1, 6), st.integers(1, 60))


def _one_file(draw: st.DrawFn) -> File:
    """Rows near one another, or anywhere, so that files overlap, touch or lie apart."""
    low = draw(st.integers(0, 150))
    near = st.builds(Position, st.integers(low, low + draw(st.integers(0, 15))), _IDS)
    positions = draw(
        st.lists(near if draw(st.integers(0, 3)) else _POSITIONS, min_size=1, max_size=8)
    )
    kind = draw(st.sampled_from(["exact"] * 8 + ["inexact", "unknown"]))
    return File(tuple(Row(at.pos, at.id, "") for at in positions), 0, kind=kind)


files_of = st.lists(st.composite(_one_file)(), max_size=6)


@dataclass(frozen=True)
class Case:
    """Some files, and which of their rows are asked for, in blocks of what size."""

    files: list[File]
    last: Position
    upto: Position
    maxstep: int

    @property
    def eligible(self) -> list[Position]:
        return rows_in(self.files, self.last, self.upto)

    def scan(self) -> Scan:
        return Scan(row for file in self.files for row in file.rows)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    files = draw(files_of)
    rows = rows_in(files, START, Position(GREATEST, GREATEST))
    # Bounds at rows and between them, with and without an id.
    at_row = (
        [st.sampled_from(rows), st.sampled_from([before(at.pos) for at in rows])] if rows else []
    )
    last = draw(st.one_of(st.just(START), _POSITIONS, *at_row))
    upto = draw(st.one_of(st.just(Position(GREATEST, GREATEST)), _POSITIONS, *at_row))
    return Case(files, last, upto, draw(_SIZES))


def rows_in(files: Sequence[File], last: Position, upto: Position) -> list[Position]:
    return sorted(row.at for file in files for row in file.rows if last < row.at <= upto)


def all_blocks(case: Case, scan: Scan) -> list[tuple[Position, Found]]:
    """Give each block with the position that it begins behind, until there is none."""
    blocks: list[tuple[Position, Found]] = []
    statistics = [file.statistics() for file in case.files]
    last = case.last
    while (found := find_block(statistics, last, case.upto, case.maxstep, scan)) is not None:
        blocks.append((last, found))
        last = found.next
        assert len(blocks) <= sum(len(file.rows) for file in case.files), "no end"
    return blocks


@given(cases())
@examples(200)
def test_blocks_cover_every_eligible_row_once_and_in_order(case: Case) -> None:
    rows = case.eligible
    taken: list[Position] = []
    for begin, found in all_blocks(case, case.scan()):
        assert begin < found.next <= case.upto
        block = [at for at in rows if begin < at <= found.next]
        assert len(block) == found.rows > 0
        taken += block
        # A block that left rows behind says so, and one that says so is at least half full.
        assert found.full or len(taken) == len(rows)
        assert not found.full or 2 * found.rows >= case.maxstep
        # More than its size only by rows that tie with the last one.
        assert sum(at < block[-1] for at in block) < case.maxstep
    assert taken == rows


@given(cases())
@examples(200)
def test_only_what_crosses_a_bound_or_has_no_exact_statistics_is_scanned(case: Case) -> None:
    scan, last, upto = case.scan(), case.last, case.upto
    statistics = [file.statistics() for file in case.files]
    found = find_block(statistics, last, upto, case.maxstep, scan)
    for after, reach in scan.ranges:
        cluster = _cluster_at(statistics, last, upto, reach)
        sure = all(f.exact and last < f.first and f.last <= upto for f in cluster)
        room = case.maxstep - len(rows_in(case.files, last, after))
        assert not sure or 0 < room < sum(f.rows for f in cluster)
    # No row is looked at twice.
    ends = [reach for _, reach in scan.ranges]
    assert ends == sorted(set(ends))
    assert found is not None or not case.eligible


def _cluster_at(
    statistics: Sequence[FileStatistics], last: Position, upto: Position, reach: Position
) -> list[FileStatistics]:
    """Find the files that a scan up to `reach` is for."""
    grouped = clusters(f for f in statistics if f.last > last and f.first <= upto)
    return next(c for c in grouped if reach.pos <= max(f.greatest_pos for f in c))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), _SIZES, st.randoms())
@examples(80)
def test_files_written_in_order_are_never_scanned_unless_one_exceeds_a_block(
    sizes: list[int], maxstep: int, shuffle: Random
) -> None:
    files: list[File] = []
    at = 0
    for size in sizes:
        files.append(File(tuple(Row(at + n, at + n, "") for n in range(size)), 0))
        at += size
    shuffle.shuffle(files)
    case = Case(files, START, Position(at, GREATEST), maxstep)
    scan = case.scan()
    blocks = all_blocks(case, scan)
    assert sum(found.rows for _, found in blocks) == sum(sizes)
    if max(sizes) * 2 <= maxstep:
        assert not scan.ranges


@given(files_of)
@examples(80)
def test_clusters_lie_apart_in_order_and_lose_no_file(files: list[File]) -> None:
    statistics = [file.statistics() for file in files]
    grouped = clusters(statistics)
    assert sorted(map(repr, (f for c in grouped for f in c))) == sorted(map(repr, statistics))
    for one, next_one in pairwise(grouped):
        assert max(f.greatest_pos for f in one) < min(f.least_pos for f in next_one)
