"""Finds the rows that Spark fails over, by running the view over ever smaller parts of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.engine.destination import in_order
from tidegate.engine.failures import blames_a_row, sentence
from tidegate.engine.functions import Reach
from tidegate.engine.lake import positions
from tidegate.engine.looks import Tables
from tidegate.engine.views import Workbench, read_base
from tidegate.errors import FlowFailed
from tidegate.model.execution import Work
from tidegate.model.position import Position
from tidegate.model.viewtext import read_view

_PARTS = 8
_FEW = 10_000
"""Positions that are listed, not cut by Spark."""
_MOST_TESTS = 1_000
"""So many runs of the view over parts of a block, and the rows at fault are too many to find."""

Test = Callable[[Sequence[Position]], str]
"""Runs the view over some positions; gives why it failed, or an empty text."""


def can_be_split(work: Work) -> bool:
    """Tell whether the view gives the same rows for a part of a block as for the whole."""
    views = (read_view(name, text) for name, text in work.definition.views.items())
    return not any("upto" in view.calls for view in views)


class Bisection:
    """One search, over the versions that the block was declared with."""

    def __init__(self, session: SparkSession, tables: Tables, bench: Workbench, work: Work) -> None:
        self._session = session
        self._tables = tables
        self._bench = bench
        self._work = work
        self._versions = work.block.versions
        self._tests = 0
        definition = work.definition
        bench.define(session, definition, work.block)
        bench.run_statements(session, definition, "before", definition.before)

    def among_new(self) -> dict[Position, str]:
        """Find the rows at fault in the block itself."""
        block = self._work.block
        ends = self._cut(block.last, block.next)
        if not ends:
            return {}
        self._require_some_good([end for end, _ in ends])
        found: dict[Position, str] = {}
        waiting = [(block.last, ends)]
        while waiting:
            start, ends = waiting.pop(0)
            for end, rows in ends:
                # The lower bound of what will be found: each part that fails holds one at least.
                self._require_few(len(found) + len(waiting))
                if self._fails(Reach(start, end)):
                    if rows <= _FEW:
                        found |= self._in_list(self._listed(start, end), self._test_range)
                    else:
                        waiting.append((start, self._cut(start, end)))
                start = end
        return found

    def among_waiting(self) -> dict[Position, str]:
        """Find the rows that still fail among those that are to be tried again."""
        waiting = sorted({row.position for row in self._work.waiting})
        return self._in_list(waiting, self._test_set)

    def _in_list(self, listed: Sequence[Position], test: Test) -> dict[Position, str]:
        why = test(listed) if listed else ""
        if not why:
            return {}
        if len(listed) == 1:
            return {listed[0]: why}
        middle = len(listed) // 2
        found = self._in_list(listed[:middle], test)
        self._require_few(len(found))
        return found | self._in_list(listed[middle:], test)

    def _test_range(self, listed: Sequence[Position]) -> str:
        first, last = listed[0], listed[-1]
        return self._fails(Reach(Position(first.pos, first.id - 1), last))

    def _test_set(self, listed: Sequence[Position]) -> str:
        block = self._work.block
        return self._fails(Reach(block.next, block.next, again=frozenset(listed)))

    def _fails(self, reach: Reach) -> str:
        """Run the view over a part, for nothing but to see whether it fails."""
        self._tests += 1
        work = self._work
        self._bench.define(self._session, work.definition, work.block, reach)
        rows = in_order(
            work.definition, self._bench.rows(self._session, work.definition, self._versions)
        )
        checks = [
            f"({condition}) AS `__tidegate_{name}`"
            for name, condition in work.definition.checks.items()
        ]
        try:
            rows.selectExpr("*", *checks).write.format("noop").mode("overwrite").save()
        except Exception as error:
            if not blames_a_row(error):
                raise
            return sentence(error)
        return ""

    def _require_some_good(self, ends: Sequence[Position]) -> None:
        """Tell a bad view from a bad row: a view that fails for every row is not set aside."""
        if len(ends) == 1:
            return
        why = ""
        for end in ends:
            why = self._test_range([end])
            if not why:
                return
        raise FlowFailed(f"{why}; it fails for every row that was tried alone, so nothing was done")

    def _require_few(self, found: int) -> None:
        most = self._work.definition.max_failed_rows
        if found > most or self._tests > _MOST_TESTS:
            raise FlowFailed(
                f"Spark fails over {found:,} rows of the block at least, more than can be set aside"
                f" (max_failed_rows is {most:,}); nothing was written"
            )

    def _cut(self, last: Position, next: Position) -> list[tuple[Position, int]]:
        """Cut a range into parts of about the same size: where each ends, and its rows."""
        rows = self._base(last, next).repartitionByRange(_PARTS, "pos", "id")
        parts = (
            rows.groupBy(F.spark_partition_id())
            .agg(
                F.max(F.struct("pos", "id")).alias("end"),
                F.min(F.struct("pos", "id")).alias("start"),
                F.count(F.lit(1)).alias("rows"),
            )
            .collect()
        )
        ends = sorted((Position(*part["end"]), int(part["rows"])) for part in parts)
        if len(ends) == 1 and parts[0]["start"] != parts[0]["end"]:
            # All fell into one part: cut its first position off, so that the search goes on.
            return [(Position(*parts[0]["start"]), 1), ends[0]]
        return ends

    def _listed(self, last: Position, next: Position) -> list[Position]:
        rows = self._base(last, next).distinct().collect()
        return sorted(Position(row["pos"], row["id"]) for row in rows)

    def _base(self, last: Position, next: Position) -> DataFrame:
        definition = self._work.definition
        columns = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        assert columns is not None
        table = read_base(self._session, self._tables, definition, self._versions)
        return positions(table, columns, last, next)
