"""Positions: how far a topic has come, as a pair of milliseconds and id."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

GREATEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60
"""So much of a text that is no position is repeated in the message."""


class Position(NamedTuple):
    """A row's place in its table: the time in milliseconds since the epoch, then the id.

    A tuple, since a plan over thousands of topics does little else than to compare positions.
    """

    pos: int
    id: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `POS,ID`: whole milliseconds (or an RFC 3339 time) and an id."""
        time, comma, ident = text.strip().strip("()[]").rpartition(",")
        shown = repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        if not comma:
            raise ValueError(f"{shown} is not a position; write POS,ID, such as 1700000000000,42")
        try:
            return cls(_milliseconds(time.strip()), _number(ident.strip(), -1))
        except ValueError as error:
            raise ValueError(
                f"{shown} is not a position ({error}); write POS,ID, such as 1700000000000,42"
            ) from None

    def __str__(self) -> str:
        return f"({self.pos}, {self.id})"


START = Position(0, -1)
"""Where a new topic stands: before every row from the epoch on."""


def before(pos: int) -> Position:
    """Give the position just before every row of that millisecond."""
    return Position(pos, -1)


@lru_cache(10_000)
def rfc3339(milliseconds: int) -> str:
    """Write a time as people and JSON readers expect it, in UTC."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return f"{moment.replace(tzinfo=None).isoformat()}.{milliseconds % 1000:03d}Z"


def _milliseconds(text: str) -> int:
    if "-" not in text[1:] and ":" not in text:
        return _number(text, 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("its time does not read as RFC 3339") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Cut, not rounded: so are the times of rows.
    return _within((moment - _EPOCH) // timedelta(milliseconds=1), 0)


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(f"{text[:_LONGEST]!r} is not a whole number of at most 19 digits")
    return _within(int(text), least)


def _within(number: int, least: int) -> int:
    if not least <= number <= GREATEST:
        raise ValueError(f"{number} is out of range")
    return number
