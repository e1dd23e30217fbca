"""Where a block ends, file by file."""

from __future__ import annotations

import pytest

from tidegate.model.looks import FileStatistics, unknown
from tidegate.model.position import GREATEST, START, Position, before
from tidegate.tables.block_finder import Cut, Found, clusters, find_block

EVERYTHING = Position(GREATEST, GREATEST)


def file(rows: int, first: tuple[int, int], last: tuple[int, int]) -> FileStatistics:
    return FileStatistics(rows, first[0], last[0], first[1], last[1], exact=True)


def inexact(rows: int, first: tuple[int, int], last: tuple[int, int]) -> FileStatistics:
    return FileStatistics(rows, first[0], last[0], first[1], last[1], exact=False)


class Scans:
    """Answers scans as told, and remembers what was asked."""

    def __init__(self, *answers: Cut) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Position, Position, int]] = []

    def __call__(self, after: Position, upto: Position, want: int) -> Cut:
        self.asked.append((after, upto, want))
        return self._answers.pop(0)


TWO_FILES = [file(10, (100, 1), (200, 10)), file(10, (300, 11), (400, 20))]


def test_no_file_gives_no_block() -> None:
    assert find_block([], START, EVERYTHING, 10, Scans()) is None


def test_whole_files_are_taken_without_a_scan() -> None:
    found = find_block(TWO_FILES, START, EVERYTHING, 100, Scans())
    assert found == Found(Position(400, 20), 20, full=False)


def test_the_order_of_files_in_the_log_plays_no_part() -> None:
    found = find_block(TWO_FILES[::-1], START, EVERYTHING, 10, Scans())
    assert found == Found(Position(200, 10), 10, full=True)


def test_a_block_that_is_exactly_full_is_full_although_nothing_remains() -> None:
    found = find_block(TWO_FILES, START, EVERYTHING, 20, Scans())
    assert found == Found(Position(400, 20), 20, full=True)


def test_files_that_are_taken_already_or_lie_beyond_are_left_out() -> None:
    found = find_block(TWO_FILES, Position(200, 10), Position(400, 20), 100, Scans())
    assert found == Found(Position(400, 20), 10, full=False)
    found = find_block(TWO_FILES, START, before(300), 100, Scans())
    assert found == Found(Position(200, 10), 10, full=False)
    assert find_block(TWO_FILES, Position(400, 20), EVERYTHING, 100, Scans()) is None
    assert find_block(TWO_FILES, START, before(100), 100, Scans()) is None


def test_half_a_block_that_ends_with_a_file_saves_the_scan() -> None:
    found = find_block(TWO_FILES, START, EVERYTHING, 19, Scans())
    assert found == Found(Position(200, 10), 10, full=True)


def test_less_than_half_a_block_is_filled_up_by_a_scan_of_the_next_file_alone() -> None:
    scans = Scans(Cut(Position(390, 19), 9, more=True))
    small = [file(2, (100, 1), (200, 2)), file(10, (300, 11), (400, 20))]
    found = find_block(small, START, EVERYTHING, 11, scans)
    assert found == Found(Position(390, 19), 11, full=True)
    assert scans.asked == [(Position(200, 2), Position(400, GREATEST), 9)]


def test_only_the_file_that_crosses_a_bound_is_scanned() -> None:
    scans = Scans(Cut(Position(150, 5), 5, more=False), Cut(Position(350, 15), 4, more=False))
    found = find_block(TWO_FILES, Position(120, 5), Position(360, 16), 100, scans)
    assert found == Found(Position(350, 15), 9, full=False)
    assert scans.asked == [
        (Position(120, 5), Position(200, GREATEST), 100),
        (Position(150, 5), Position(360, 16), 95),
    ]


def test_a_scan_that_finds_no_row_moves_nothing() -> None:
    scans = Scans(Cut(None, 0, more=False), Cut(None, 0, more=False))
    assert find_block(TWO_FILES, Position(120, 5), before(310), 100, scans) is None
    assert len(scans.asked) == 2


def test_a_full_block_does_not_look_at_the_file_that_crosses_the_bound() -> None:
    found = find_block(TWO_FILES, START, before(310), 10, Scans())
    assert found == Found(Position(200, 10), 10, full=True)


def test_ties_go_beyond_the_size() -> None:
    scans = Scans(Cut(Position(100, 1), 7, more=True))
    found = find_block([file(10, (100, 1), (200, 10))], START, EVERYTHING, 5, scans)
    assert found == Found(Position(100, 1), 7, full=True)


def test_files_that_overlap_are_scanned_together() -> None:
    overlapping = [file(10, (100, 1), (300, 10)), file(10, (300, 11), (400, 20))]
    scans = Scans(Cut(Position(250, 9), 9, more=True))
    found = find_block(overlapping, START, EVERYTHING, 9, scans)
    assert found == Found(Position(250, 9), 9, full=True)
    assert scans.asked == [(START, Position(400, GREATEST), 9)]


@pytest.mark.parametrize("doubtful", [inexact(10, (300, 1), (350, 20)), unknown(10)])
def test_statistics_that_say_too_little_are_not_believed(doubtful: FileStatistics) -> None:
    scans = Scans(Cut(Position(340, 3), 18, more=False))
    found = find_block([doubtful, file(10, (300, 11), (400, 20))], START, EVERYTHING, 100, scans)
    assert found == Found(Position(340, 3), 18, full=False)
    assert len(scans.asked) == 1


def test_ids_and_poses_up_to_the_greatest() -> None:
    last = [file(1, (GREATEST, GREATEST), (GREATEST, GREATEST))]
    found = find_block(last, Position(GREATEST, GREATEST - 1), EVERYTHING, 1, Scans())
    assert found == Found(EVERYTHING, 1, full=True)
    assert find_block(last, EVERYTHING, EVERYTHING, 1, Scans()) is None


def test_clusters_lie_apart_and_in_order() -> None:
    a, b, c = file(1, (5, 0), (9, 0)), file(1, (1, 0), (3, 0)), file(1, (3, 9), (4, 0))
    assert clusters([a, b, c]) == [[b, c], [a]]
    assert clusters([]) == []
