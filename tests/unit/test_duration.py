"""Durations: written as people write them, refused with a hint, shown with two units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.duration import UNITS, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("11s+22min", 11_000 + 22 * 60_000),
        ("1h 30m", 90 * 60_000),
        ("1h30m", 90 * 60_000),
        ("500ms", 500),
        ("30s", 30_000),
        (" 30 S ", 30_000),
        ("1.5h", 90 * 60_000),
        ("0", 0),
        ("0s", 0),
        ("1y + 1mo + 1w + 1d", (365 + 30 + 7 + 1) * 86_400_000),
        ("2MIN", 120_000),
    ],
)
def test_a_duration_is_read(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "s", "5 parsecs", "-5s", "1h -30m", "1h,30m", "+1h", "1h+", "1h++2m", "1h&2m"),
        *("1e3s", "9" * 500 + "s", "1001y", "5s x", "0.s", ".5s", "1:30", "P1D"),
    ],
)
def test_anything_else_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write a number and a unit"):
        parse_duration(text)


@given(st.integers(0, 1000), st.sampled_from(sorted(UNITS)))
def test_every_unit_counts_as_many_times_as_it_is_written(count: int, unit: str) -> None:
    assert parse_duration(f"{count}{unit}") == count * UNITS[unit]


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (260_000, "4 min 20 s"),
        (3_600_000, "1 h"),
        (3_601_000, "1 h"),
        ((2 * 24 + 3) * 3_600_000, "2 d 3 h"),
        (-1_000, "-1 s"),
        (366 * 86_400_000, "1 y 1 d"),
    ],
)
def test_a_duration_is_shown_with_its_two_greatest_units(milliseconds: int, shown: str) -> None:
    assert format_duration(milliseconds) == shown
