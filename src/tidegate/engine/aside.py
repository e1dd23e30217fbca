"""Sets failing rows aside before the rest of a block is written, and brings back those that pass.

What is found is kept in the store as pending first, then the rest is written over the very same
table versions, and the commit of the block makes both true at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.functions import at_positions, millis
from tidegate.engine.looks import Tables
from tidegate.engine.positions import PositionColumns
from tidegate.engine.views import read_base, read_table
from tidegate.errors import FlowFailed
from tidegate.model.execution import Work
from tidegate.model.failed import (
    MOST_WAITING,
    FailedRow,
    FailedState,
    Seen,
    Settled,
    over_limit,
    settle_appended,
    settle_keyed,
    settle_reloaded,
)
from tidegate.model.lineage import TOPIC_COLUMN, Definition, Processor
from tidegate.model.position import Position
from tidegate.ports import Failures, Runtime

_FAILED, _HASH, _POS, _ID = (f"__tidegate_{name}" for name in ("failed", "hash", "pos", "id"))
_OURS = (_FAILED, _HASH, _POS, _ID)


@dataclass(frozen=True)
class Raised:
    """The rows that Spark fails over, by position, with the reason."""

    new: Mapping[Position, str]
    waiting: Mapping[Position, str]


class SetAside:
    """Parts the rows of a block: those that may be written, and those that may not."""

    def __init__(self, tables: Tables, failures: Failures, runtime: Runtime) -> None:
        self._tables = tables
        self._failures = failures
        self._runtime = runtime

    def forget(self, work: Work) -> None:
        """Drop what an earlier attempt at the block found."""
        self._keep(work, [])

    def sift(
        self,
        session: SparkSession,
        rows: DataFrame,
        work: Work,
        versions: Mapping[str, int],
        raised: Raised,
    ) -> DataFrame:
        """Keep as pending what fails, and give the rows that are to be written."""
        flagged = _flagged(rows, work.definition)
        waiting = [row for row in work.waiting if row.position not in raised.waiting]
        again = _again(work.definition, waiting)
        seen = self._seen(flagged, work, again)
        settled = self._settle(session, work, waiting, seen, rows.columns)
        fresh = self._fresh(work, seen, waiting)
        fresh += self._poison(session, work, versions, raised.new)
        self._require_few(work, fresh)
        still = [
            row.tried_again(raised.waiting[row.position], _most(work))
            for row in work.waiting
            if row.position in raised.waiting
        ]
        self._keep(work, [*fresh, *settled.rows, *still])
        passing = flagged.where(f"{_FAILED} IS NULL")
        if waiting and _by_position(work.definition):
            passing = passing.where(_allowed(again, settled.allowed))
        return passing.drop(*_OURS)

    def _seen(self, flagged: DataFrame, work: Work, again: str) -> list[tuple[Seen, bool]]:
        """Look at what fails and at what is tried again; few rows, by the limits."""
        definition = work.definition
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
        work: Work,
        waiting: list[FailedRow],
        seen: list[tuple[Seen, bool]],
        columns: list[str],
    ) -> Settled:
        definition, most = work.definition, _most(work)
        if definition.processor is Processor.RELOAD:
            return settle_reloaded(waiting, [row for row, _ in seen], most)
        tried = [row for row, again in seen if again]
        if definition.keys:
            return settle_keyed(waiting, tried, most)
        written = self._written(session, definition, waiting, columns)
        shared = self._shared(session, definition, waiting)
        return settle_appended(waiting, tried, written, most, shared)

    def _fresh(
        self, work: Work, seen: list[tuple[Seen, bool]], waiting: list[FailedRow]
    ) -> list[FailedRow]:
        if work.definition.processor is Processor.RELOAD:
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
        work: Work,
        versions: Mapping[str, int],
        raised: Mapping[Position, str],
    ) -> list[FailedRow]:
        """Read the base rows that Spark fails over: their view gives nothing to show."""
        if not raised:
            return []
        definition = work.definition
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
        definition: Definition,
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
        self, session: SparkSession, definition: Definition, waiting: list[FailedRow]
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

    def _require_few(self, work: Work, fresh: list[FailedRow]) -> None:
        definition = work.definition
        over = over_limit(
            len(fresh), work.block.rows, definition.max_failed_rows, definition.max_failed_share
        )
        if over:
            reasons = Counter(row.reason for row in fresh).most_common(3)
            told = "; ".join(f"{count:,} × {reason}" for reason, count in reasons)
            least = " at least" if len(fresh) > definition.max_failed_rows else ""
            raise FlowFailed(
                f"{len(fresh):,} rows{least} fail ({told}), {over}; nothing was written"
            )
        counts = self._failures.counts().get(definition.topic, {})
        waiting = counts.get(FailedState.WAITING, 0)
        if waiting + len(fresh) > MOST_WAITING:
            raise FlowFailed(
                f"{len(fresh):,} rows fail and {waiting:,} wait already, more than the"
                f" {MOST_WAITING:,} that may wait at a time; nothing was written"
            )

    def _keep(self, work: Work, rows: list[FailedRow]) -> None:
        self._failures.pend(work.execution, work.block.seq, rows, self._runtime.now())


def _most(work: Work) -> int:
    return work.definition.max_retries_per_entity


def _by_position(definition: Definition) -> bool:
    return definition.processor is Processor.STEP and not definition.keys


def _flagged(rows: DataFrame, definition: Definition) -> DataFrame:
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


def _again(definition: Definition, waiting: list[FailedRow]) -> str:
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


def _position_columns(rows: DataFrame, definition: Definition) -> PositionColumns:
    names = {name.lower(): name for name in rows.columns}
    pos, id = names[definition.pos.lower()], names[definition.id.lower()]
    kind = rows.schema[pos].dataType.typeName()
    return PositionColumns(pos, id, kind if kind.startswith("timestamp") else "bigint")


def _reason(definition: Definition, check: str | None) -> str | None:
    if check is None:
        return None
    return f"the check {check} ({definition.checks[check]}) is not true"
