"""Step 3b: where the next block of a base table ends, by file statistics, looking into few files.

Files that overlap in pos form a cluster; clusters lie apart, in order. A cluster whose statistics
are exact and that lies wholly inside the allowed range is taken as a whole, unread. Only a cluster
that crosses a bound, or whose statistics say too little, is scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import LakeError, TopicStopped
from tidegate.model.looks import Ahead, FileStatistics, Look
from tidegate.model.position import GREATEST, Block, Offset, Position, before
from tidegate.ports.outside import Looks, Recorded, Runtime
from tidegate.spark.looks import PositionColumns, Tables
from tidegate.spark.session import SparkHost, lake_error, sentence
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.plan import Limits
from tidegate.tables.views import in_block, millis


@dataclass(frozen=True, slots=True)
class Cut:
    """The first rows of a range: where they end, how many they are, whether more follow."""

    next: Position | None
    rows: int
    more: bool


class Scan(Protocol):
    """Take the first `want` rows in (after, upto], in order, with all that tie with the last."""

    def __call__(self, after: Position, upto: Position, want: int) -> Cut: ...


@dataclass(frozen=True)
class Found:
    """A block of the base table, found but not declared yet."""

    next: Position
    rows: int
    full: bool
    """More rows were eligible than the block took."""


def find_block(
    files: Iterable[FileStatistics], last: Position, upto: Position, maxstep: int, scan: Scan
) -> Found | None:
    """Find the block behind `last`: at most `maxstep` rows and ties, none past `upto`."""
    rows, end = 0, None
    for cluster in clusters(file for file in files if file.last > last and file.first <= upto):
        inside = all(file.exact and last < file.first and file.last <= upto for file in cluster)
        size = sum(file.rows for file in cluster)
        if inside and rows + size <= maxstep:
            rows, end = rows + size, max(file.last for file in cluster)
            continue
        if inside and end is not None and 2 * rows >= maxstep:
            # Half a block that ends where a file ends is worth more than a scan for the rest.
            return Found(end, rows, full=True)
        if rows >= maxstep:
            break
        cut = _look_inside(cluster, end or last, upto, maxstep - rows, scan)
        rows, end = rows + cut.rows, cut.next or end
        if cut.more:
            break
    else:
        return None if end is None else Found(end, rows, full=rows >= maxstep)
    return None if end is None else Found(end, rows, full=True)


def _look_inside(
    cluster: Sequence[FileStatistics], after: Position, upto: Position, want: int, scan: Scan
) -> Cut:
    reach = Position(max(file.greatest_pos for file in cluster), GREATEST)
    return scan(after, min(upto, reach), want)


def clusters(files: Iterable[FileStatistics]) -> list[list[FileStatistics]]:
    """Group the files that overlap in pos, in the order of their positions."""
    grouped: list[list[FileStatistics]] = []
    reach = -1
    for file in sorted(files, key=lambda file: file.least_pos):
        if grouped and file.least_pos <= reach:
            grouped[-1].append(file)
            reach = max(reach, file.greatest_pos)
        else:
            grouped.append([file])
            reach = file.greatest_pos
    return grouped


class Lake(Looks, Protocol):
    """Looks, and the bounds of blocks, which may need a scan."""

    def find_block(
        self, definition: TableDefinition, last: Position, frontier: Position, bound: int
    ) -> Found | None: ...

    def drop(self, table: str) -> None:
        """Delete a table that was built beside another one, with its files."""


class BlockFinder:
    """Turns what a plan allows into the block that is taken."""

    def __init__(self, lake: Lake, runtime: Runtime) -> None:
        self._lake = lake
        self._runtime = runtime

    def find(
        self, definition: TableDefinition, version: int, offset: Offset, limits: Limits | None
    ) -> Block | None:
        """Find the block; None when there is nothing to take."""
        if limits is None:
            # It was to finish a block that somebody else has finished meanwhile.
            return None
        self._match_table(definition, offset)
        if definition.processor is Processor.RELOAD:
            start = min(limits.complete_to, self._runtime.now() - (definition.delay or 0))
            end = max(Position(start, 0), offset.last)
            rows, full, complete_to = 0, False, start
        else:
            found = self._lake.find_block(definition, offset.last, limits.frontier, limits.bound)
            if found is None and not limits.retry:
                return None
            # A block without rows of its own brings in those that failed before and pass now.
            found = found or Found(offset.last, 0, full=False)
            end, rows, full = found.next, found.rows, found.full
            complete_to = end.pos if full else limits.complete_to
        return Block(
            last=offset.last,
            next=end,
            rows=rows,
            seq=offset.seq + 1,
            full=full,
            complete_to=max(complete_to, offset.complete_to),
            definition_version=version,
            versions=self._lake.versions(definition.listed),
            processor=processor_name(definition, full=full),
        )

    def _match_table(self, definition: TableDefinition, offset: Offset) -> None:
        """Hold the store's count of blocks against the table's own, before anything is added."""
        recorded = self._lake.recorded(definition.table, definition.topic)
        topic, table = definition.topic, definition.table
        require_known(definition, offset, recorded)
        if recorded.seq < offset.seq and definition.processor is Processor.STEP:
            self._lake.require_there()
            raise TopicStopped(
                f"{table} holds {recorded.seq} blocks of {topic}, and the store knows of"
                f" {offset.seq}: the table was deleted or rolled back; put it back, or build it"
                f" anew: tidegate rebuild {topic}"
            )


def processor_name(definition: TableDefinition, *, full: bool) -> str:
    """Name what promotes the offset, for people who look for problems."""
    if definition.processor is Processor.RELOAD:
        return "Reload"
    return "FullStep" if full else "Step"


def require_known(definition: TableDefinition, offset: Offset, recorded: Recorded) -> None:
    """Refuse to go on where the table holds blocks that the store does not know of."""
    topic, table = definition.topic, definition.table
    if recorded.seq > offset.seq:
        where = f" up to {recorded.next}" if recorded.next else ""
        start = recorded.next or "POS,ID"
        raise TopicStopped(
            f"{table} holds {recorded.seq} blocks of {topic}{where}, and the store knows of"
            f" {offset.seq}; to go on behind them: tidegate offsets set {topic} --last"
            f" {str(start).strip('()').replace(' ', '')} --force"
        )


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

    def recorded(self, table: str, writer: str) -> Recorded:
        return self._tables.recorded(table, writer)

    def require_there(self) -> None:
        self._tables.require_there()

    def drop(self, table: str) -> None:
        self._tables.drop(table)
        database, _, name = table.partition(".")
        try:
            # A catalog that outlives this process may know it by name.
            self._spark.fresh().sql(f"DROP TABLE IF EXISTS `{database}`.`{name}`")
        except Exception as error:
            raise lake_error(error, f"{table} cannot be dropped: {sentence(error)}") from error

    def find_block(
        self, definition: TableDefinition, last: Position, frontier: Position, bound: int
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
            raise lake_error(error, f"{base} cannot be read: {sentence(error)}") from error


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
