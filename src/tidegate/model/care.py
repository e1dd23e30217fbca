"""Table care: when small files are put together, and when files that nobody needs are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.model.duration import DAY

SMALL_FILE = 32 * 2**20
"""Bytes; a file below it is small."""
COMPACTED_FILE = 4 * SMALL_FILE
"""Bytes up to which small files are put together."""
VACUUM_EVERY = DAY


@dataclass(frozen=True)
class CareRules:
    """What the project wants; 0 switches either off."""

    compact_files: int
    """More small files than this, beyond one a partition, are put together."""
    vacuum_after: int
    """Milliseconds after which a file that the table no longer needs is deleted."""


@dataclass(frozen=True)
class Chores:
    """What a table needs now."""

    compact: bool = False
    vacuum: bool = False

    def __bool__(self) -> bool:
        return self.compact or self.vacuum


@dataclass(frozen=True)
class Care:
    """What was done, for the log."""

    note: str
    tried_vacuum: bool = False


def chores(
    rules: CareRules,
    small: Mapping[str, int],
    *,
    created_at: int,
    vacuumed_at: int | None,
    now: int,
) -> Chores:
    """Decide by the small files of each partition, of which one each has to stay."""
    spare = sum(small.values()) - len(small)
    oldest = max(created_at + rules.vacuum_after, (vacuumed_at or 0) + VACUUM_EVERY)
    return Chores(
        compact=rules.compact_files > 0 and spare >= rules.compact_files,
        vacuum=rules.vacuum_after > 0 and now >= oldest,
    )
