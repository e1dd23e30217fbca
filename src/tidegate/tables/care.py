"""Table care: small files put together, and those that nobody needs deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.crashpoint import crashpoint
from tidegate.model.duration import DAY, HOUR
from tidegate.model.position import Offset, OffsetState, rfc3339
from tidegate.ports.outside import Runtime
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost, sentence

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


_TIDY = (OffsetState.DONE, OffsetState.NOJOBS)
"""The states of a topic that nobody works on and nothing is wrong with."""


def is_tidy(offset: Offset) -> bool:
    """Tell whether a topic may be looked after: nothing of it is open, and nothing is wrong."""
    return offset.state in _TIDY and offset.block is None


class Caretaker(Protocol):
    """Has a table compacted and vacuumed."""

    def chores(self, table: str, offset: Offset) -> Chores:
        """Say what the table needs, by its log; raises LakeError."""

    def run(self, table: str, chores: Chores, pins: Sequence[int]) -> Care:
        """Do it; versions that are pinned stay readable."""


_RETENTION = "delta.deletedFileRetentionDuration"
_MARGIN = HOUR
"""A file is marked as removed a little before the commit that removes it."""


class SparkCaretaker:
    """Implements `Caretaker` by OPTIMIZE and VACUUM."""

    def __init__(
        self, spark: SparkHost, tables: Tables, rules: CareRules, runtime: Runtime
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._rules = rules
        self._runtime = runtime
        self._left: dict[str, int] = {}
        """Small files that a compaction of this process could not put together."""

    def chores(self, table: str, offset: Offset) -> Chores:
        small = self._tables.files_below(table, SMALL_FILE)
        needed = chores(
            self._rules,
            small,
            created_at=self._tables.origin(table)[0],
            vacuumed_at=offset.vacuumed_at,
            now=self._runtime.now(),
        )
        fruitless = sum(small.values()) < self._left.get(table, 0) + self._rules.compact_files
        return Chores(needed.compact and not fruitless, needed.vacuum)

    def run(self, table: str, chores: Chores, pins: Sequence[int]) -> Care:
        notes = [self._compact(table)] if chores.compact else []
        notes += [self._vacuum(table, pins)] if chores.vacuum else []
        return Care("; ".join(notes), tried_vacuum=chores.vacuum)

    def _compact(self, table: str) -> str:
        session = self._spark.fresh()
        # The table's large files are left as they are: only small ones are worth a rewrite.
        for name, size in (("minFileSize", SMALL_FILE), ("maxFileSize", COMPACTED_FILE)):
            session.conf.set(f"spark.databricks.delta.optimize.{name}", str(size))
        before = sum(self._tables.files_below(table, SMALL_FILE).values())
        self._left[table] = before
        try:
            session.sql(f"OPTIMIZE {self._named(table)}")
        except Exception as error:  # noqa: BLE001  (a table with small files is still right)
            return f"compaction failed: {sentence(error)}"
        crashpoint("care.after_compaction")
        after = sum(self._tables.files_below(table, SMALL_FILE).values())
        self._left[table] = after
        return f"compacted {before:,} small files to {after:,}"

    def _vacuum(self, table: str, pins: Sequence[int]) -> str:
        keep = self._rules.vacuum_after
        needed = self._tables.replaced_at(table, min(pins)) if pins else None
        if needed is not None and needed < self._runtime.now() - keep + _MARGIN:
            since = rfc3339(needed)
            return f"no VACUUM: an open block reads the table as it was until {since}"
        session = self._spark.fresh()
        # Delta lists a table's folders in so many tasks; by default ten thousand, for minutes.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "16")
        if _RETENTION not in self._tables.origin(table)[1]:
            # The project says how long; a table that has its own word on it may refuse.
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            session.sql(f"VACUUM {self._named(table)} RETAIN {keep / HOUR:.6f} HOURS")
        except Exception as error:  # noqa: BLE001  (a table with old files is still right)
            return f"VACUUM failed: {sentence(error)}"
        return "vacuumed"

    def _named(self, table: str) -> str:
        return f"delta.`{self._tables.path(table).replace('`', '``')}`"
