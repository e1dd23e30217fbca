"""Rows that fail: what becomes of them when they are tried again."""

from __future__ import annotations

import pytest

from tidegate.model.entities import FailedRow, FailedState, over_limit
from tidegate.model.position import Position
from tidegate.tables.settling import Seen, settle_appended, settle_keyed, settle_reloaded

HERE, THERE = Position(5, 1), Position(6, 2)
ROW = FailedRow(HERE, 11, {"x": 1}, "no")


def states(rows: tuple[FailedRow, ...]) -> list[tuple[int, str, int]]:
    return [(row.hash, row.state.value, row.attempts) for row in rows]


def test_a_row_that_passes_is_written_whatever_it_holds_now() -> None:
    settled = settle_appended([ROW], [Seen(HERE, 99)], set(), 5)
    assert states(settled.rows) == [(11, "written", 1)]
    assert settled.allowed == {(HERE, 99)}


def test_a_row_that_fails_again_counts_its_tries_and_dies_at_the_limit() -> None:
    row = ROW
    for tries in (1, 2, 3):
        (row,) = settle_appended([row], [Seen(HERE, 11, "still no")], set(), 3).rows
        assert (row.attempts, row.reason) == (tries, "still no")
        assert row.state is (FailedState.DEAD if tries == 3 else FailedState.WAITING)


def test_the_same_row_with_other_content_that_fails_too_inherits_the_tries() -> None:
    settled = settle_appended([ROW], [Seen(HERE, 12, "no", {"x": 2})], set(), 5)
    assert states(settled.rows) == [(11, "written", 1), (12, "waiting", 1)]
    assert settled.allowed == frozenset()


def test_a_sibling_that_is_in_the_table_is_not_written_again() -> None:
    settled = settle_appended([ROW], [Seen(HERE, 7), Seen(HERE, 12)], {(HERE, 7)}, 5)
    assert settled.allowed == {(HERE, 12)}


def test_siblings_that_changed_are_left_alone_rather_than_doubled() -> None:
    settled = settle_appended([ROW], [Seen(HERE, 8), Seen(HERE, 12)], {(HERE, 7)}, 5)
    assert settled.allowed == frozenset()
    assert "other rows for (5, 1)" in settled.rows[0].reason
    assert states(settled.rows) == [(11, "waiting", 1)]


def test_a_row_that_the_view_gives_no_more_is_settled() -> None:
    assert states(settle_appended([ROW], [], set(), 5).rows) == [(11, "written", 1)]


def test_the_newest_row_of_a_key_speaks_for_it() -> None:
    seen = [Seen(THERE, 11), Seen(HERE, 11, "no")]
    assert states(settle_keyed([ROW], seen, 5).rows) == [(11, "written", 1)]
    seen = [Seen(HERE, 11), Seen(THERE, 11, "newly no", {"x": 3})]
    (row,) = settle_keyed([ROW], seen, 5).rows
    assert (row.reason, row.entity) == ("newly no", {"x": 3})


def test_a_reload_gives_every_row_again() -> None:
    other = FailedRow(HERE, 12, {}, "no")
    settled = settle_reloaded([ROW, other], [Seen(HERE, 12, "no")], 5)
    assert states(settled.rows) == [(11, "written", 1), (12, "waiting", 1)]


@pytest.mark.parametrize(
    ("failed", "rows", "share", "words"),
    [(3, 10, 1.0, ""), (11, 10**6, 1.0, "max_failed_rows, 10"), (3, 10, 0.2, "30% of the block")],
)
def test_limits(failed: int, rows: int, share: float, words: str) -> None:
    over = over_limit(failed, rows, 10, share)
    assert words in over
    assert bool(over) == bool(words)


class TestSharedPositions:
    """Of two shards with rows at one position, what the table holds may be the other's."""

    def test_what_was_set_aside_comes_in_though_the_table_holds_the_same(self) -> None:
        settled = settle_appended([ROW], [Seen(HERE, 11)], {(HERE, 11)}, 5, {HERE})
        assert settled.allowed == {(HERE, 11)}
        assert states(settled.rows) == [(11, "written", 1)]

    def test_a_row_that_changed_into_one_of_the_table_waits_rather_than_being_lost(self) -> None:
        settled = settle_appended([ROW], [Seen(HERE, 12)], {(HERE, 12)}, 5, {HERE})
        assert settled.allowed == frozenset()
        assert states(settled.rows) == [(11, "waiting", 1)]
        assert "maybe from another shard" in settled.rows[0].reason

    def test_a_sibling_in_the_table_does_not_keep_it_out(self) -> None:
        settled = settle_appended([ROW], [Seen(HERE, 7), Seen(HERE, 12)], {(HERE, 7)}, 5, {HERE})
        assert settled.allowed == {(HERE, 12)}
        assert states(settled.rows) == [(11, "written", 1)]
