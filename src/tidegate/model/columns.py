"""How the columns of a view differ from those of its table, and which differences are harmless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """What a table lacks, and what cannot be mended by adding to it."""

    added: tuple[str, ...]
    misfits: tuple[str, ...]
    """In words, one a column."""


def compare(
    given: Mapping[str, str], table: Mapping[str, str], before: Mapping[str, str] | None
) -> Difference:
    """Hold the columns of a view against those of its table, and against what it gave before.

    A table may have columns that the view never gave: of a sibling topic, or added by hand. Names
    are compared without regard to case, as Spark does.
    """
    held = {name.lower(): kind for name, kind in table.items()}
    now = {name.lower() for name in given}
    misfits = [
        f"{name} was {held[name.lower()]} and is {kind} now"
        for name, kind in given.items()
        if held.get(name.lower(), kind) != kind
    ]
    owed = table if before is None else before
    misfits += [f"{name} is gone" for name in owed if name.lower() not in now]
    added = tuple(name for name in given if name.lower() not in held)
    return Difference(added, tuple(misfits))
