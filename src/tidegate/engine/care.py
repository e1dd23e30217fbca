"""Table care by Spark: OPTIMIZE for small files, VACUUM for files that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.crashpoint import crashpoint
from tidegate.engine.failures import sentence
from tidegate.engine.looks import Tables
from tidegate.engine.session import SparkHost
from tidegate.model.care import COMPACTED_FILE, SMALL_FILE, Care, CareRules, Chores, chores
from tidegate.model.duration import HOUR
from tidegate.model.execution import Offset
from tidegate.model.position import rfc3339
from tidegate.ports import Runtime

_RETENTION = "delta.deletedFileRetentionDuration"
_MARGIN = HOUR
"""A file is marked as removed a little before the commit that removes it."""


class SparkCaretaker:
    """Implements `ports.Caretaker`."""

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
