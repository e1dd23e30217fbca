"""Looks at Delta tables without a JVM: how far they have come, their files, recorded writes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from tidegate.errors import LakeAway, LakeError
from tidegate.model.looks import Ahead, FileStatistics, Look, unknown
from tidegate.model.position import START, Position
from tidegate.ports.outside import Recorded
from tidegate.spark.delta_log import (
    Handles,
    LogEnd,
    commits,
    data_version_of,
    our_metadata,
    rows_written,
)

_INTEGERS = frozenset({"long", "integer", "short", "byte"})


@dataclass(frozen=True)
class PositionColumns:
    """The columns that carry a table's position, as the table spells them, and pos's type."""

    pos: str
    id: str
    kind: str
    """`bigint`, `timestamp` or `timestamp_ntz`."""


def position_columns(found: DeltaTable, pos: str, id: str) -> PositionColumns | None:
    """Find the two columns without regard to case, as Spark does."""
    by_name = {field.name.lower(): field for field in found.schema().fields}
    pos_field, id_field = by_name.get(pos.lower()), by_name.get(id.lower())
    if pos_field is None or id_field is None:
        return None
    pos_type, id_type = (str(getattr(field.type, "type", "")) for field in (pos_field, id_field))
    kind = "bigint" if pos_type in _INTEGERS else pos_type
    if kind not in ("bigint", "timestamp", "timestamp_ntz") or id_type not in _INTEGERS:
        return None
    return PositionColumns(pos_field.name, id_field.name, kind)


def statistics(
    found: DeltaTable, columns: PositionColumns, after: Position = START
) -> list[FileStatistics]:
    """Read file statistics from the log; files without a single position are left out.

    So are those that end before `after`: of a table that is long built from, nearly all.
    """
    actions = as_arrow(found.get_add_actions(flatten=True))
    low, high = (_milliseconds(_column(actions, f"{m}.{columns.pos}")) for m in ("min", "max"))
    low_id, high_id = (_column(actions, f"{m}.{columns.id}") for m in ("min", "max"))
    rows = _column(actions, "num_records")
    no_pos, no_id = (
        pc.fill_null(_column(actions, f"null_count.{name}").cast(pa.int64()), 0)
        for name in (columns.pos, columns.id)
    )
    exact = pc.and_(pc.equal(pc.add(no_pos, no_id), 0), pc.greater_equal(low, 0))
    exact = pc.and_(exact, _has_no_deletions(found, actions))
    spread = {"rows": rows, "low": low, "high": high, "low_id": low_id, "high_id": high_id}
    files = pa.table({**spread, "exact": exact})
    somewhere = pc.invert(pc.or_(pc.equal(rows, no_pos), pc.equal(rows, no_id)))
    files = files.filter(pc.fill_null(somewhere, True))
    files = files.filter(pc.fill_null(pc.greater_equal(files["high"], after.pos), True))
    told = reduce(pc.and_, (pc.is_valid(files[name]) for name in spread))
    untold = files.filter(pc.invert(told))["rows"].to_pylist()
    # Thousands of them, each time: as few steps in Python as can be.
    known = zip(*(column.to_pylist() for column in files.filter(told).columns), strict=True)
    return [*map(FileStatistics._make, known), *(unknown(rows or 0) for rows in untold)]


def as_arrow(stream: Any) -> pa.Table:
    """Take a table over from the reader of the log; `pa.table()` would import pandas for it."""
    return pa.RecordBatchReader.from_stream(stream).read_all()


def _column(actions: pa.Table, name: str) -> pa.ChunkedArray:
    if name in actions.column_names:
        return actions.column(name)
    return pa.chunked_array([pa.nulls(actions.num_rows)])


def _milliseconds(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(values.type):
        return values
    micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    # Arrow's division cuts towards zero; times before 1970 are negative and have to be floored.
    floored = pc.if_else(pc.less(micros, 0), pc.subtract(micros, 999), micros)
    return pc.divide(floored, 1000)


def _has_no_deletions(found: DeltaTable, actions: pa.Table) -> pa.Scalar | pa.Array:
    """Tell of each file whether all of its rows are still there."""
    if "deletionVectors" not in (found.protocol().reader_features or ()):
        return pa.scalar(True)
    vectors = as_arrow(found.deletion_vectors()).column("filepath").to_pylist()
    deleted = tuple(path.rpartition("/")[2] for path in vectors)
    whole = [not path.endswith(deleted) for path in actions["path"].to_pylist()]
    return pa.array(whole, pa.bool_())


def newest_of(found: DeltaTable, columns: PositionColumns) -> Position | None:
    """Find the greatest position of a table; rows are read only where statistics do not tell."""
    files = statistics(found, columns)
    if not files:
        return None
    top = max(file.greatest_pos for file in files)
    highest = [file for file in files if file.greatest_pos == top]
    if all(file.exact for file in files):
        if all(file.least_pos == top or file.rows == 1 for file in highest):
            return max(file.last for file in highest)
    else:
        query = f"SELECT max({_millis(columns)}) FROM t WHERE {{id}} IS NOT NULL"
        found_top = _ask(found, columns, query)
        if found_top is None or found_top < START.pos:
            return None
        top = found_top
    # The greatest id of a file need not be that of its greatest pos: look at that millisecond.
    greatest = _ask(found, columns, f"SELECT max({{id}}) FROM t WHERE {_within(columns, top, top)}")
    return None if greatest is None else Position(top, greatest)


def unread_of(found: DeltaTable, columns: PositionColumns) -> int:
    """Count the rows that have no position; only a table with such a row is asked."""
    actions = as_arrow(found.get_add_actions(flatten=True))
    names = (f"null_count.{columns.pos}", f"null_count.{columns.id}")
    if not any(pc.sum(_column(actions, name).cast(pa.int64())).as_py() for name in names):
        return 0
    query = "SELECT count(*) FROM t WHERE {pos} IS NULL OR {id} IS NULL"
    return _ask(found, columns, query) or 0


def first_pos_after(found: DeltaTable, columns: PositionColumns, last: Position) -> int | None:
    """Find the pos of the first row behind a position."""
    later = _within(columns, last.pos + 1, None)
    query = (
        f"SELECT min({_millis(columns)}) FROM t WHERE {_within(columns, last.pos, None)}"
        f" AND {{id}} IS NOT NULL AND ({later} OR {{id}} > {last.id})"
    )
    return _ask(found, columns, query)


def _ask(found: DeltaTable, columns: PositionColumns, query: str) -> int | None:
    text = query.format(pos=_quoted(columns.pos), id=_quoted(columns.id))
    answer = as_arrow(QueryBuilder().register("t", found).execute(text).read_all())
    value = answer.column(0)[0].as_py() if answer.num_rows else None
    return None if value is None else int(value)


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'.replace("{", "{{").replace("}", "}}")


def _millis(columns: PositionColumns) -> str:
    if columns.kind == "bigint":
        return "{pos}"
    return "arrow_cast({pos}, 'Int64') / 1000"


def _within(columns: PositionColumns, low: int, high: int | None) -> str:
    if columns.kind == "bigint":
        upper = "" if high is None else f" AND {{pos}} <= {high}"
        return f"({{pos}} >= {low}{upper})"
    zone = 'Some("UTC")' if columns.kind == "timestamp" else "None"
    kind = f"Timestamp(Microsecond, {zone})"
    upper = "" if high is None else f" AND {{pos}} < arrow_cast({(high + 1) * 1000}, '{kind}')"
    return f"({{pos}} >= arrow_cast({low * 1000}, '{kind}'){upper})"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last look at a table: good for as long as its log ends where it did."""

    look: Look
    end: LogEnd


class Tables:
    """The Delta tables of a lake, one folder a table below one a database."""

    def __init__(
        self, lake: str, now: Callable[[], int], options: Mapping[str, str] | None = None
    ) -> None:
        self._lake = lake.rstrip("/")
        self._now = now
        self._options = dict(options or {})
        """How to reach a lake that is not a folder."""
        self._handles = Handles(self._options)
        self._seen: dict[tuple[str, str, str, bool], _Seen] = {}

    def path(self, table: str) -> str:
        """Give the place of a table: `<lake>/<db>/<table>`."""
        database, _, name = table.partition(".")
        return f"{self._lake}/{database}/{name}"

    def open(self, table: str) -> DeltaTable | None:
        """Open a table at its newest version; None when there is none."""
        path = self.path(table)
        try:
            return self._handles.open(path)
        except TableNotFoundError as error:
            if _is_refused(error):
                raise self._unreadable(table, error) from error
            return None
        except (DeltaError, OSError) as error:
            if "://" not in path and not _exists(Path(path) / "_delta_log"):
                return None
            raise self._unreadable(table, error) from error

    def _unreadable(self, table: str, error: Exception) -> LakeError:
        message = f"{table} at {self.path(table)} cannot be read: {in_one_line(error)}"
        return LakeAway(message) if _is_away(error) else LakeError(message)

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Say of what fails in here which table cannot be read, and whether storage is to blame."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise self._unreadable(table, error) from error

    def require_there(self) -> None:
        """Raise LakeAway where nothing of the lake is to be seen: a table is not gone by that."""
        if "://" in self._lake:
            return
        try:
            with os.scandir(self._lake) as found:
                holds = any(not one.name.startswith(".") for one in found)
        except OSError as error:
            raise LakeAway(f"the lake {self._lake} cannot be read: {error.strerror}") from error
        if not holds:
            raise LakeAway(f"the lake {self._lake} is empty: is what it lies on mounted?")

    def exists(self, table: str) -> bool:
        path = self.path(table)
        if "://" in path:
            return self.open(table) is not None
        # Opening the log takes ten times as long, and this is asked a dozen times a block.
        return next((Path(path) / "_delta_log").glob("*.json"), None) is not None

    def is_blank(self, table: str) -> bool:
        """Tell whether a table was made and never written: a failed first load leaves it so."""
        found = self.open(table)
        if found is None or found.file_uris():
            return False
        return all(str(commit.get("operation")).startswith("CREATE") for commit in commits(found))

    def versions(self, tables: Sequence[str]) -> dict[str, int]:
        """Give the newest version of each of the tables that exist."""
        opened = {table: self.open(table) for table in tables}
        return {table: found.version() for table, found in opened.items() if found is not None}

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look:
        """See how far a table has come; the time is taken before the table is read."""
        at = self._now()
        key = (table, pos, id, data_version)
        seen = self._seen.pop(key, None)
        if seen and not seen.end.has_grown and seen.end.stands:
            self._seen[key] = seen
            return seen.look.again(at)
        look = self._read(table, pos, id, at, data_version=data_version)
        path = self.path(table)
        end = LogEnd.of(path, look.version) if "://" not in path else None
        if end is not None:
            self._seen[key] = _Seen(look, end)
        return look

    def _read(self, table: str, pos: str, id: str, at: int, *, data_version: bool) -> Look:
        found = self.open(table)
        if found is None:
            return Look(table, at, exists=False)
        with self._reading(table):
            return self._look_into(found, table, pos, id, at, data_version=data_version)

    def _look_into(
        self, found: DeltaTable, table: str, pos: str, id: str, at: int, *, data_version: bool
    ) -> Look:
        version = found.version()
        changed = data_version_of(found) if data_version else -1
        columns = position_columns(found, pos, id)
        if columns is None:
            return Look(table, at, positioned=False, version=version, data_version=changed)
        return Look(
            table,
            at,
            newest=newest_of(found, columns),
            unread=unread_of(found, columns),
            version=version,
            data_version=changed,
        )

    def columns(self, table: str, pos: str, id: str) -> PositionColumns | None:
        """Tell which columns carry the position of a table; None without table or columns."""
        found = self.open(table)
        return None if found is None else position_columns(found, pos, id)

    def column_names(self, table: str) -> list[str]:
        found = self.open(table)
        return [] if found is None else [field.name for field in found.schema().fields]

    def files(
        self, table: str, pos: str, id: str, after: Position
    ) -> tuple[PositionColumns, list[FileStatistics]] | None:
        """Give the columns that carry a table's position, and the files that may lie behind one.

        Both from one reading of the log, which is what takes the time. None as for `columns`.
        """
        found = self.open(table)
        columns = position_columns(found, pos, id) if found else None
        if found is None or columns is None:
            return None
        with self._reading(table):
            return columns, statistics(found, columns, after)

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead:
        """See what lies beyond a position: the first row's pos, and about how many rows."""
        found = self.open(table)
        columns = position_columns(found, pos, id) if found else None
        if found is None or columns is None:
            return Ahead(None)
        with self._reading(table):
            return _ahead(found, columns, last)

    def added(self, table: str, version: int) -> list[Mapping[str, Any]]:
        """Give the files that a commit added, as it wrote them down."""
        handler = DeltaStorageHandler(self.path(table), self._options)
        log = f"_delta_log/{version:020d}.json"
        with self._reading(table), handler.open_input_file(log) as commit:
            lines = commit.read(commit.size()).splitlines()
        return [json.loads(line)["add"] for line in lines if line.startswith(b'{"add"')]

    def partition_columns(self, table: str) -> list[str]:
        found = self.open(table)
        return [] if found is None else list(found.metadata().partition_columns)

    def rows(self, table: str, version: int) -> int:
        """Count the rows of a version, by the log."""
        path = self.path(table)
        return DeltaTable(path, version=version, storage_options=self._options).count()

    def files_below(self, table: str, size: int) -> dict[str, int]:
        """Count the files below a size, by partition."""
        found = self.open(table)
        if found is None:
            return {}
        actions = as_arrow(found.get_add_actions(flatten=True))
        small = actions.filter(pc.less(actions.column("size_bytes"), size))
        names = [name for name in small.column_names if name.startswith("partition.")]
        if not names:
            return {"": small.num_rows} if small.num_rows else {}
        return Counter(map(repr, small.select(names).to_pylist()))

    def origin(self, table: str) -> tuple[int, Mapping[str, str]]:
        """Tell when a table was made, and its properties."""
        found = self.open(table)
        metadata = found.metadata() if found else None
        return (metadata.created_time or 0, metadata.configuration) if metadata else (0, {})

    def replaced_at(self, table: str, version: int) -> int | None:
        """Tell when a version ceased to be the newest; None while it is, 0 when nobody knows."""
        found = self.open(table)
        if found is None or found.version() <= version:
            return None
        times = {commit["version"]: commit["timestamp"] for commit in commits(found)}
        return int(times.get(version + 1, 0))

    def drop(self, table: str) -> None:
        """Delete the files of a table; whoever asks knows that they are ours to delete."""
        path = self.path(table)
        try:
            if "://" in path:
                DeltaStorageHandler(path, self._options).delete_dir("")
            elif Path(path).exists():
                # The other way would leave the empty folders.
                shutil.rmtree(path)
        except OSError as error:
            raise LakeError(f"{table} cannot be deleted: {first_line(error)}") from error

    def recorded(self, table: str, writer: str) -> Recorded:
        """Read what a table's own log says of the last write under a writer's name."""
        found = self.open(table)
        if found is None:
            return Recorded(0)
        with self._reading(table):
            return _recorded(found, writer)


def _ahead(found: DeltaTable, columns: PositionColumns, last: Position) -> Ahead:
    beyond = [file for file in statistics(found, columns, last) if file.last > last]
    rows = sum(file.rows for file in beyond)
    crossing = [file for file in beyond if file.least_pos <= last.pos]
    if all(file.exact and file.first > last for file in crossing):
        return Ahead(min((file.least_pos for file in beyond), default=None), rows)
    return Ahead(first_pos_after(found, columns, last), rows)


def _recorded(found: DeltaTable, writer: str) -> Recorded:
    seq = found.transaction_version(app_id(writer))
    if seq is None:
        return Recorded(0)
    for commit in commits(found):
        written = our_metadata(commit)
        if written.get("topic") == writer and written.get("seq") == seq:
            return Recorded(
                seq,
                _position(written.get("last")),
                _position(written.get("next")),
                int(commit["version"]),
                written.get("execution"),
                rows_written(commit),
            )
    return Recorded(seq)


def _position(written: Any) -> Position | None:
    """Read a bound of a block; a writer with markers of its own leaves none."""
    return None if written is None else Position(*written)


def app_id(writer: str) -> str:
    """Name a writer in Delta's transactions: the version under it is the block's seq."""
    return f"tidegate/{writer}"


_OS_CODE = re.compile(r"\bcode: (\d+)")
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)


def _is_refused(error: Exception) -> bool:
    """Tell whether a table is called not found because it may not, or cannot, be looked for."""
    code = _OS_CODE.search(str(error))
    return code is not None and int(code[1]) not in _NOTHING_THERE


def _is_away(error: Exception) -> bool:
    """Tell whether storage is to blame: the reader of the log gives that as an OSError.

    What it finds in a table that is not as it should be is a DeltaError.
    """
    lost = isinstance(error, FileNotFoundError) or "not found" in str(error)
    return _is_refused(error) or (isinstance(error, OSError) and not lost)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # It cannot be told: whoever asks goes by the error that it has at hand.
        return True


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def in_one_line(error: BaseException) -> str:
    """Put the lines of an error of the log's reader in one: its cause comes last."""
    lines = (line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines())
    told = ": ".join(line for line in lines if line and not line.endswith("<unknown>"))
    return told[:500] or type(error).__name__


def first_line(error: BaseException) -> str:
    """Give the first line of an error's text, without its tail."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
