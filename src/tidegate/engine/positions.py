"""Reads positions out of a Delta table: from its log's statistics, or rows where need be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from tidegate.model.blocks import FileStatistics, unknown
from tidegate.model.position import START, Position

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
