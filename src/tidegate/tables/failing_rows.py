"""Finds rows that fail, sets them aside before the rest is written, brings in those that pass.

What is found is kept in the store as pending first, then the rest is written over the very same
table versions, and the commit of the block makes both true at once. Rows that Spark itself fails
over are found by running the view over ever smaller parts of a block.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.errors import FlowFailed, TooManyFail
from tidegate.model.entities import MOST_WAITING, FailedRow, FailedState, over_limit
from tidegate.model.position import Position
from tidegate.ports.outside import Runtime
from tidegate.ports.store import Failures
from tidegate.spark.looks import PositionColumns, Tables
from tidegate.spark.session import blames_a_row, sentence
from tidegate.sql.reading import read_view
from tidegate.tables.block_finder import positions
from tidegate.tables.definition import TOPIC_COLUMN, Processor, TableDefinition
from tidegate.tables.runner import Load
from tidegate.tables.settling import Seen, Settled, settle_appended, settle_keyed, settle_reloaded
from tidegate.tables.views import BlockViews, Reach, at_positions, millis, read_base, read_table
from tidegate.tables.writes import in_order

_FAILED, _HASH, _POS, _ID = (f"__tidegate_{name}" for name in ("failed", "hash", "pos", "id"))
_OURS = (_FAILED, _HASH, _POS, _ID)


@dataclass(frozen=True)
class Raised:
    """The rows that Spark fails over, by position, with the reason."""

    new: Mapping[Position, str]
    waiting: Mapping[Position, str]


class FailingRows:
    """Parts the rows of a block: those that may be written, and those that may not."""

    def __init__(self, tables: Tables, failures: Failures, runtime: Runtime) -> None:
        self._tables = tables
        self._failures = failures
        self._runtime = runtime

    def forget(self, load: Load) -> None:
        """Drop what an earlier attempt at the block found."""
        self._keep(load, [])

    def filter_out(
        self,
        session: SparkSession,
        rows: DataFrame,
        load: Load,
        versions: Mapping[str, int],
        raised: Raised,
    ) -> DataFrame:
        """Keep as pending what fails, and give the rows that are to be written."""
        flagged = _flagged(rows, load.definition)
        waiting = [row for row in load.waiting if row.position not in raised.waiting]
        again = _again(load.definition, waiting)
        seen = self._seen(flagged, load, again)
        settled = self._settle(session, load, waiting, seen, rows.columns)
        fresh = self._fresh(load, seen, waiting)
        fresh += self._poison(session, load, versions, raised.new)
        self._require_few(load, fresh)
        still = [
            row.tried_again(raised.waiting[row.position], _most(load))
            for row in load.waiting
            if row.position in raised.waiting
        ]
        self._keep(load, [*fresh, *settled.rows, *still])
        passing = flagged.where(f"{_FAILED} IS NULL")
        if waiting and _by_position(load.definition):
            passing = passing.where(_allowed(again, settled.allowed))
        return passing.drop(*_OURS)

    def _seen(self, flagged: DataFrame, load: Load, again: str) -> list[tuple[Seen, bool]]:
        """Look at what fails and at what is tried again; few rows, by the limits."""
        definition = load.definition
        if not definition.checks and again == "false":
            return []
        columns = ", ".join(f"`{name}`" for name in flagged.columns if name not in _OURS)
        found = (
            flagged.where(f"{_FAILED} IS NOT NULL OR {again}")
            .selectExpr(
                *_OURS,
                f"CASE WHEN {_FAILED} IS NOT NULL THEN to_json(struct({columns})) END AS entity",
                f"{again} AS again",
            )
            .limit(definition.max_failed_rows + MOST_WAITING + 1)
            .collect()
        )
        return [
            (
                Seen(
                    Position(row[_POS], row[_ID]),
                    row[_HASH],
                    _reason(definition, row[_FAILED]),
                    json.loads(row["entity"] or "{}"),
                ),
                row["again"],
            )
            for row in found
        ]

    def _settle(
        self,
        session: SparkSession,
        load: Load,
        waiting: list[FailedRow],
        seen: list[tuple[Seen, bool]],
        columns: list[str],
    ) -> Settled:
        definition, most = load.definition, _most(load)
        if definition.processor is Processor.RELOAD:
            return settle_reloaded(waiting, [row for row, _ in seen], most)
        tried = [row for row, again in seen if again]
        if definition.keys:
            return settle_keyed(waiting, tried, most)
        written = self._written(session, definition, waiting, columns)
        shared = self._shared(session, definition, waiting)
        return settle_appended(waiting, tried, written, most, shared)

    def _fresh(
        self, load: Load, seen: list[tuple[Seen, bool]], waiting: list[FailedRow]
    ) -> list[FailedRow]:
        if load.definition.processor is Processor.RELOAD:
            known = {row.hash for row in waiting}
            seen = [(row, row.hash in known) for row, _ in seen]
        failed: dict[str, FailedRow] = {}
        for row, again in seen:
            if row.failed is not None and not again:
                fresh = FailedRow(row.position, row.hash, row.entity, row.failed)
                failed[fresh.entity_id] = fresh
        return list(failed.values())

    def _poison(
        self,
        session: SparkSession,
        load: Load,
        versions: Mapping[str, int],
        raised: Mapping[Position, str],
    ) -> list[FailedRow]:
        """Read the base rows that Spark fails over: their view gives nothing to show."""
        if not raised:
            return []
        definition = load.definition
        columns = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        assert columns is not None
        table = read_base(session, self._tables, definition, versions)
        entity = f"to_json(struct({', '.join(f'`{name}`' for name in table.columns)}))"
        found = (
            _at(table, columns, raised.keys())
            .selectExpr(
                f"{millis(columns.kind, f'`{columns.pos}`')} AS {_POS}",
                f"CAST(`{columns.id}` AS BIGINT) AS {_ID}",
                f"xxhash64({entity}) AS {_HASH}",
                f"{entity} AS entity",
            )
            .limit(MOST_WAITING + 1)
            .collect()
        )
        rows: dict[str, FailedRow] = {}
        for row in found:
            position = Position(row[_POS], row[_ID])
            failed = FailedRow(
                position,
                row[_HASH],
                json.loads(row["entity"]),
                raised[position],
                raised=True,
            )
            rows[failed.entity_id] = failed
        return list(rows.values())

    def _written(
        self,
        session: SparkSession,
        definition: TableDefinition,
        waiting: list[FailedRow],
        columns: list[str],
    ) -> set[tuple[Position, int]]:
        """Look at what the table holds at the positions that are tried again."""
        if not waiting:
            return set()
        table = read_table(session, self._tables.path(definition.table))
        if definition.tagged:
            table = table.where(f"`{TOPIC_COLUMN}` = '{definition.topic}'")
        position = _position_columns(table, definition)
        found = (
            _at(table, position, {row.position for row in waiting})
            .selectExpr(
                f"{millis(position.kind, f'`{position.pos}`')} AS {_POS}",
                f"CAST(`{position.id}` AS BIGINT) AS {_ID}",
                f"{_hash(columns)} AS {_HASH}",
            )
            .limit(10 * MOST_WAITING)
            .collect()
        )
        return {(Position(row[_POS], row[_ID]), row[_HASH]) for row in found}

    def _shared(
        self, session: SparkSession, definition: TableDefinition, waiting: list[FailedRow]
    ) -> set[Position]:
        """Find the positions at which the base has rows of other shards too."""
        if not waiting or definition.shard is None or definition.tagged:
            return set()
        columns = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        assert columns is not None
        table = read_table(session, self._tables.path(definition.base))
        found = (
            _at(table, columns, {row.position for row in waiting})
            .where(f"NOT ({definition.shard.condition()})")
            .selectExpr(
                f"{millis(columns.kind, f'`{columns.pos}`')} AS {_POS}",
                f"CAST(`{columns.id}` AS BIGINT) AS {_ID}",
            )
            .distinct()
            .collect()
        )
        return {Position(row[_POS], row[_ID]) for row in found}

    def _require_few(self, load: Load, fresh: list[FailedRow]) -> None:
        definition = load.definition
        over = over_limit(
            len(fresh), load.block.rows, definition.max_failed_rows, definition.max_failed_share
        )
        if over:
            reasons = Counter(row.reason for row in fresh).most_common(3)
            told = "; ".join(f"{count:,} × {reason}" for reason, count in reasons)
            least = " at least" if len(fresh) > definition.max_failed_rows else ""
            raise TooManyFail(
                f"{len(fresh):,} rows{least} fail ({told}), {over}; nothing was written"
            )
        counts = self._failures.counts().get(definition.topic, {})
        waiting = counts.get(FailedState.WAITING, 0)
        if waiting + len(fresh) > MOST_WAITING:
            raise FlowFailed(
                f"{len(fresh):,} rows fail and {waiting:,} wait already, more than the"
                f" {MOST_WAITING:,} that may wait at a time; nothing was written"
            )

    def _keep(self, load: Load, rows: list[FailedRow]) -> None:
        self._failures.pend(load.execution, load.block.seq, rows, self._runtime.now())


def _most(load: Load) -> int:
    return load.definition.max_retries_per_entity


def _by_position(definition: TableDefinition) -> bool:
    return definition.processor is Processor.STEP and not definition.keys


def _flagged(rows: DataFrame, definition: TableDefinition) -> DataFrame:
    """Say of each row which check is not true for it, and who it is."""
    cases = " ".join(
        f"WHEN NOT coalesce(({condition}), false) THEN '{name}'"
        for name, condition in definition.checks.items()
    )
    failed = f"CASE {cases} END" if cases else "CAST(NULL AS STRING)"
    pos, id = "0L", "0L"
    if definition.processor is Processor.STEP:
        position = _position_columns(rows, definition)
        pos, id = millis(position.kind, f"`{position.pos}`"), f"CAST(`{position.id}` AS BIGINT)"
    identity = _hash(list(definition.keys) or rows.columns)
    return rows.selectExpr(
        "*",
        *(f"{failed} AS {_FAILED}", f"{identity} AS {_HASH}"),
        *(f"{pos} AS {_POS}", f"{id} AS {_ID}"),
    )


def _hash(columns: Collection[str]) -> str:
    # Through JSON, since a map has no hash of its own.
    return f"xxhash64(to_json(struct({', '.join(f'`{name}`' for name in columns)})))"


def _again(definition: TableDefinition, waiting: list[FailedRow]) -> str:
    """Write the condition for rows that are tried again."""
    if not waiting or definition.processor is Processor.RELOAD:
        return "false"
    raised = [row for row in waiting if row.raised]
    if not definition.keys:
        return _listed(f"concat({_POS}, ':', {_ID})", {_place(row.position) for row in waiting})
    by_key = _listed(_HASH, {f"{row.hash}L" for row in waiting if not row.raised})
    by_place = _listed(f"concat({_POS}, ':', {_ID})", {_place(row.position) for row in raised})
    return f"({by_key} OR {by_place})"


def _allowed(again: str, allowed: Collection[tuple[Position, int]]) -> str:
    places = {f"'{position.pos}:{position.id}:{hash}'" for position, hash in allowed}
    return f"NOT {again} OR {_listed(f'''concat({_POS}, ':', {_ID}, ':', {_HASH})''', places)}"


def _place(position: Position) -> str:
    return f"'{position.pos}:{position.id}'"


def _listed(what: str, values: Collection[str]) -> str:
    return f"{what} IN ({', '.join(sorted(values))})" if values else "false"


def _at(table: DataFrame, columns: PositionColumns, positions: Collection[Position]) -> DataFrame:
    """Give the rows of a table at some positions; files that hold none of them are skipped."""
    pos, id = f"`{columns.pos}`", f"`{columns.id}`"
    return table.where(at_positions(columns.kind, positions, pos, id))


def _position_columns(rows: DataFrame, definition: TableDefinition) -> PositionColumns:
    names = {name.lower(): name for name in rows.columns}
    pos, id = names[definition.pos.lower()], names[definition.id.lower()]
    kind = rows.schema[pos].dataType.typeName()
    return PositionColumns(pos, id, kind if kind.startswith("timestamp") else "bigint")


def _reason(definition: TableDefinition, check: str | None) -> str | None:
    if check is None:
        return None
    return f"the check {check} ({definition.checks[check]}) is not true"


_PARTS = 8
_FEW = 10_000
"""Positions that are listed, not cut by Spark."""
_MOST_TESTS = 1_000
"""So many runs of the view over parts of a block, and the rows at fault are too many to find."""
Test = Callable[[Sequence[Position]], str]
"""Runs the view over some positions; gives why it failed, or an empty text."""


def can_be_split(load: Load) -> bool:
    """Tell whether the view gives the same rows for a part of a block as for the whole."""
    views = (read_view(name, text) for name, text in load.definition.views.items())
    return not any("upto" in view.calls for view in views)


class Bisection:
    """One search, over the versions that the block was declared with."""

    def __init__(
        self, session: SparkSession, tables: Tables, views: BlockViews, load: Load
    ) -> None:
        self._session = session
        self._tables = tables
        self._views = views
        self._load = load
        self._versions = load.block.versions
        self._tests = 0
        definition = load.definition
        views.define(session, definition, load.block)
        views.run_statements(session, definition, "before", definition.before)

    def among_new(self) -> dict[Position, str]:
        """Find the rows at fault in the block itself."""
        block = self._load.block
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
        waiting = sorted({row.position for row in self._load.waiting})
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
        block = self._load.block
        return self._fails(Reach(block.next, block.next, again=frozenset(listed)))

    def _fails(self, reach: Reach) -> str:
        """Run the view over a part, for nothing but to see whether it fails."""
        self._tests += 1
        load = self._load
        self._views.define(self._session, load.definition, load.block, reach)
        rows = in_order(
            load.definition, self._views.rows(self._session, load.definition, self._versions)
        )
        checks = [
            f"({condition}) AS `__tidegate_{name}`"
            for name, condition in load.definition.checks.items()
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
        most = self._load.definition.max_failed_rows
        if found > most or self._tests > _MOST_TESTS:
            raise TooManyFail(
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
        definition = self._load.definition
        columns = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        assert columns is not None
        table = read_base(self._session, self._tables, definition, self._versions)
        return positions(table, columns, last, next)
