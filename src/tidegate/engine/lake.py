"""The lake as services see it: looks by the log, block bounds with a scan where they need one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.failures import sentence
from tidegate.engine.functions import in_block, millis
from tidegate.engine.looks import Tables
from tidegate.engine.positions import PositionColumns
from tidegate.engine.session import SparkHost
from tidegate.errors import LakeError
from tidegate.model.blocks import Cut, Found, find_block
from tidegate.model.facts import Ahead, Look
from tidegate.model.lineage import Definition
from tidegate.model.position import Position, before
from tidegate.ports import Recorded


class DeltaLake:
    """Delta tables below one path, looked at through their logs, scanned by Spark."""

    def __init__(self, tables: Tables, spark: SparkHost) -> None:
        self._tables = tables
        self._spark = spark

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look:
        return self._tables.look(table, pos, id, data_version=data_version)

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead:
        return self._tables.ahead(table, pos, id, last)

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]:
        return self._tables.versions(tables)

    def recorded(self, definition: Definition) -> Recorded:
        return self._tables.recorded(definition)

    def drop(self, table: str) -> None:
        self._tables.drop(table)
        database, _, name = table.partition(".")
        try:
            # A catalog that outlives this process may know it by name.
            self._spark.fresh().sql(f"DROP TABLE IF EXISTS `{database}`.`{name}`")
        except Exception as error:
            raise LakeError(f"{table} cannot be dropped: {sentence(error)}") from error

    def find_block(
        self, definition: Definition, last: Position, frontier: Position, bound: int
    ) -> Found | None:
        """Step 3b: find where the next block ends."""
        base, pos, id = definition.base, definition.base_pos, definition.base_id
        found = self._tables.files(base, pos, id, last)
        if found is None:
            raise LakeError(f"{base} is not in the lake, or has no columns {pos} and {id}")
        columns, files = found
        scan = _BaseScan(self._spark, self._tables.path(base), columns)
        try:
            return find_block(
                files,
                last,
                min(frontier, before(bound)),
                definition.maxstep,
                scan,
            )
        except LakeError:
            raise
        except Exception as error:
            raise LakeError(f"{base} cannot be read: {sentence(error)}") from error


def positions(
    table: DataFrame, columns: PositionColumns, after: Position, upto: Position
) -> DataFrame:
    """Give pos, in milliseconds, and id of the rows in a range of a table."""
    named = table.selectExpr(f"`{columns.pos}` AS pos", f"CAST(`{columns.id}` AS BIGINT) AS id")
    inside = named.where(in_block(columns.kind, after, upto))
    return inside.selectExpr(f"{millis(columns.kind, 'pos')} AS pos", "id")


class _BaseScan:
    """Reads pos and id of a range of the base table, by Spark; Delta skips the other files."""

    def __init__(self, spark: SparkHost, path: str, columns: PositionColumns) -> None:
        self._spark = spark
        self._path = path
        self._columns = columns
        self._session: SparkSession | None = None

    def __call__(self, after: Position, upto: Position, want: int) -> Cut:
        rows = self._rows(after, upto)
        total, end = self._measure(rows)
        if total <= want or end is None:
            return Cut(end, total, more=False)
        _, next = self._measure(rows.orderBy("pos", "id").limit(want))
        assert next is not None
        taken, _ = self._measure(rows.where(in_block("bigint", after, next)))
        return Cut(next, taken, more=taken < total)

    def _rows(self, after: Position, upto: Position) -> DataFrame:
        if self._session is None:
            self._session = self._spark.fresh()
            # Above this, a sort that can spill; below, the rows are kept in memory.
            self._session.conf.set("spark.sql.execution.topKSortFallbackThreshold", "100000")
        table = self._session.read.format("delta").load(self._path)
        return positions(table, self._columns, after, upto)

    def _measure(self, rows: DataFrame) -> tuple[int, Position | None]:
        answer = rows.selectExpr("count(*) AS rows", "max(struct(pos, id)) AS end").collect()[0]
        end = answer["end"]
        return int(answer["rows"]), None if end is None else Position(end["pos"], end["id"])
