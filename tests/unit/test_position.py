"""Positions: read as people write them, compared as rows are, shown in UTC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.position import GREATEST, START, Position, before, rfc3339

POSITIONS = st.builds(Position, st.integers(0, GREATEST), st.integers(-1, GREATEST))


@given(POSITIONS)
def test_what_is_shown_can_be_typed_again(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1700000000000,42", Position(1700000000000, 42)),
        (" 0 , -1 ", START),
        ("[5, 6]", Position(5, 6)),
        (f"{GREATEST},{GREATEST}", Position(GREATEST, GREATEST)),
        ("1970-01-01T00:00:01Z,7", Position(1000, 7)),
        ("1970-01-01T01:00:01+01:00,7", Position(1000, 7)),
        ("1970-01-01 00:00:01.5,7", Position(1500, 7)),
        ("1970-01-02,0", Position(86_400_000, 0)),
    ],
)
def test_a_position_is_read(text: str, position: Position) -> None:
    assert Position.parse(text) == position


def test_a_time_is_cut_to_milliseconds_as_that_of_a_row_is() -> None:
    assert Position.parse("2026-01-01T00:00:00.999999Z,0").pos % 1000 == 999


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "5", "5,", ",5", "a,1", "1,a", "1.5,2", "-1,0", "0,-2", "1_000,2", "٣,4"),
        *(f"{GREATEST + 1},0", f"0,{GREATEST + 1}", "1969-12-31T23:59:59Z,0", "2026-13-01,0"),
        *("9" * 10_000 + ",1", "1," + "9" * 10_000, "inf,0", "0x10,1", "1;DROP TABLE x,2"),
    ],
)
def test_anything_else_is_refused_with_an_example_and_in_one_short_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position.*write POS,ID, such as") as refused:
        Position.parse(text)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_positions_are_ordered_by_time_then_id() -> None:
    assert START < Position(0, 0) < Position(0, 1) < before(1) < Position(1, 0)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (GREATEST, f"{GREATEST} ms"),
    ],
)
def test_times_are_shown_in_utc(milliseconds: int, shown: str) -> None:
    assert rfc3339(milliseconds) == shown
