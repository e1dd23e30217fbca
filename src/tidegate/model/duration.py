"""Durations as people write them in a lineage: `30s`, `11s+22min`, `1h 30m`, `500ms`."""

from __future__ import annotations

import re

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

UNITS = {
    "ms": 1,
    "s": SECOND,
    "m": MINUTE,
    "min": MINUTE,
    "h": HOUR,
    "d": DAY,
    "w": 7 * DAY,
    "mo": 30 * DAY,
    "y": 365 * DAY,
}

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\+?", re.IGNORECASE)
_LONGEST = 1000 * UNITS["y"]


def parse_duration(text: str) -> int:
    """Give the duration in milliseconds; a month has 30 days and a year 365."""
    total, at = 0.0, 0
    stripped = text.strip()
    if stripped == "0":
        return 0
    while at < len(stripped):
        part = _PART.match(stripped, at)
        unit = UNITS.get(part[2].lower()) if part else None
        if part is None or unit is None:
            raise _bad(text)
        total += float(part[1]) * unit
        at = part.end()
    if not stripped or stripped.endswith("+") or total > _LONGEST:
        raise _bad(text)
    return round(total)


def format_duration(milliseconds: int) -> str:
    """Write a duration with its two greatest units: `4 min 20 s`, `2 d 3 h`."""
    if milliseconds < 0:
        return "-" + format_duration(-milliseconds)
    if milliseconds < SECOND:
        return f"{milliseconds} ms"
    parts: list[str] = []
    rest = milliseconds
    for name, size in (("y", UNITS["y"]), ("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def _bad(text: str) -> ValueError:
    return ValueError(
        f"{text!r} is not a duration; write a number and a unit"
        " (y, mo, w, d, h, min or m, s, ms), such as 30s or 1h 30m"
    )
