"""Blocks over random files, against the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.blocks import FileStatistics, Found, clusters, find_block
from tidegate.model.position import GREATEST, START, Position

from .lake import File, Row, Scan
from .profile import examples

_POSES = st.one_of(st.integers(0, 12), st.integers(0, 200), st.just(GREATEST))
_IDS = st.one_of(st.integers(0, 3), st.integers(0, 50), st.sampled_from([GREATEST, GREATEST - 1]))
_POSITIONS = st.builds(Position, _POSES, _IDS)
_BOUNDS = st.one_of(_POSITIONS, st.builds(Position, _POSES, st.just(-1)))
_UPTO = st.one_of(_BOUNDS, st.just(Position(GREATEST, GREATEST)))
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


def eligible(files: Sequence[File], last: Position, upto: Position) -> list[Position]:
    return sorted(row.at for file in files for row in file.rows if last < row.at <= upto)


def all_blocks(
    files: Sequence[File], last: Position, upto: Position, maxstep: int, scan: Scan
) -> list[tuple[Position, Found]]:
    """Give each block with the position that it begins behind, until there is none."""
    blocks: list[tuple[Position, Found]] = []
    statistics = [file.statistics() for file in files]
    while (found := find_block(statistics, last, upto, maxstep, scan)) is not None:
        blocks.append((last, found))
        last = found.next
        assert len(blocks) <= sum(len(file.rows) for file in files), "no end"
    return blocks


@given(files_of, _BOUNDS, _UPTO, _SIZES)
@examples(120)
def test_blocks_cover_every_eligible_row_once_and_in_order(
    files: list[File], last: Position, upto: Position, maxstep: int
) -> None:
    rows = eligible(files, last, upto)
    scan = Scan(row for file in files for row in file.rows)
    taken: list[Position] = []
    for begin, found in all_blocks(files, last, upto, maxstep, scan):
        assert begin < found.next <= upto
        block = [at for at in rows if begin < at <= found.next]
        assert len(block) == found.rows > 0
        taken += block
        left = len(rows) - len(taken)
        # A block that was limited says so, and one that says so reached its size.
        assert found.full or left == 0
        assert not found.full or 2 * found.rows >= maxstep
        # More than its size only by rows that tie with the last one.
        assert sum(at < block[-1] for at in block) < maxstep
    assert taken == rows


@given(files_of, _BOUNDS, _UPTO, _SIZES)
@examples(120)
def test_only_what_crosses_a_bound_or_has_no_exact_statistics_is_scanned(
    files: list[File], last: Position, upto: Position, maxstep: int
) -> None:
    scan = Scan(row for file in files for row in file.rows)
    statistics = [file.statistics() for file in files]
    found = find_block(statistics, last, upto, maxstep, scan)
    for after, reach in scan.ranges:
        cluster = _cluster_at(statistics, last, upto, reach)
        sure = all(f.exact and last < f.first and f.last <= upto for f in cluster)
        too_large = 0 < maxstep - len(eligible(files, last, after)) < sum(f.rows for f in cluster)
        assert not sure or too_large
    # The rows of a block that was found are looked at once at most.
    ends = [reach for _, reach in scan.ranges]
    assert ends == sorted(set(ends))
    if found is None:
        assert not eligible(files, last, upto)


def _cluster_at(
    statistics: Sequence[FileStatistics], last: Position, upto: Position, reach: Position
) -> list[FileStatistics]:
    """Find the files that a scan up to `reach` is for."""
    grouped = clusters(f for f in statistics if f.last > last and f.first <= upto)
    return next(c for c in grouped if reach.pos <= max(f.greatest_pos for f in c))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), _SIZES, st.randoms())
@examples(60)
def test_files_written_in_order_are_never_scanned_unless_one_exceeds_a_block(
    sizes: list[int], maxstep: int, shuffle: Random
) -> None:
    files: list[File] = []
    at = 0
    for size in sizes:
        files.append(File(tuple(Row(at + n, at + n, "") for n in range(size)), 0))
        at += size
    scan = Scan(row for file in files for row in file.rows)
    shuffle.shuffle(files)
    upto = Position(at, GREATEST)
    blocks = all_blocks(files, START, upto, maxstep, scan)
    assert sum(found.rows for _, found in blocks) == sum(sizes)
    if max(sizes) * 2 <= maxstep:
        assert not scan.ranges


@given(files_of)
@examples(60)
def test_clusters_lie_apart_in_order_and_lose_no_file(files: list[File]) -> None:
    statistics = [file.statistics() for file in files]
    grouped = clusters(statistics)
    assert sorted(map(repr, (f for c in grouped for f in c))) == sorted(map(repr, statistics))
    for one, next_one in pairwise(grouped):
        assert max(f.greatest_pos for f in one) < min(f.least_pos for f in next_one)
