"""What a load sees of its own rows while it writes them: the figures of the ETL log.

Whoever writes a Delta file counts it, so for what is appended or overwritten the commit knows them.
Only a MERGE, which rewrites files with rows of others in them, has its rows observed. Beside them
stand the figures of a user's own query over the rows of a block, `logs/<table>.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidegate.errors import FlowFailed
from tidegate.model.records import Measures
from tidegate.spark.looks import Tables
from tidegate.sql.editing import redirected, typed
from tidegate.tables.definition import TOPIC_COLUMN, Processor, TableDefinition
from tidegate.tables.views import read_table

_FILLED = "filled "
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def observed(
    frame: DataFrame, observation: Observation, pos: str | None, id: str | None
) -> DataFrame:
    """Let the load count its rows as they pass, at no pass of its own."""

    figures: list[Column] = [F.count(F.lit(1)).alias("rows")]
    columns = {name.lower(): name for name in frame.columns}
    if pos and id and pos.lower() in columns and id.lower() in columns:
        millis = _millis(frame, columns[pos.lower()])
        figures += [
            F.max(F.col(f"`{columns[id.lower()]}`").cast("bigint")).alias("max_id"),
            F.min(millis).alias("min_ts"),
            F.max(millis).alias("max_ts"),
        ]
    figures += [
        # What is not counted is null: a count costs less than a condition on each row.
        F.count(F.col(f"`{field.name}`")).alias(_FILLED + field.name)
        for field in frame.schema.fields
        if field.nullable and "`" not in field.name
    ]
    return frame.observe(observation, *figures)


def _millis(frame: DataFrame, name: str) -> Column:

    column = F.col(f"`{name}`")
    match frame.schema[name].dataType.typeName():
        case "timestamp":
            return F.unix_millis(column)
        case "timestamp_ntz":
            return F.unix_millis(column.cast("timestamp"))
        case _:
            return column.cast("bigint")


def written(counted: Measures, files: Sequence[Mapping[str, Any]], pos: str, id: str) -> Measures:
    """Add up the statistics of the files that a commit wrote; a file without them tells nothing."""
    told = [json.loads(file.get("stats") or "{}") for file in files]
    if not all("nullCount" in stats for stats in told):
        return counted
    nulls: dict[str, int] = {}
    for file, stats in zip(files, told, strict=True):
        for name, count in _null_counts(file, stats):
            nulls[name] = nulls.get(name, 0) + count
    return replace(
        counted,
        max_id=max(_found(told, "maxValues", id), default=None),
        min_ts=min(map(_time, _found(told, "minValues", pos)), default=None),
        max_ts=max(map(_time, _found(told, "maxValues", pos)), default=None),
        nulls=nulls,
    )


def _null_counts(file: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in (file.get("partitionValues") or {}).items():
        yield name, stats["numRecords"] if value is None else 0
    for name, count in stats["nullCount"].items():
        # A struct has counts of its fields, and none of its own.
        if isinstance(count, int):
            yield name, count


def _found(told: Sequence[Mapping[str, Any]], which: str, column: str) -> Iterator[Any]:
    for stats in told:
        for name, value in (stats.get(which) or {}).items():
            if name.lower() == column.lower():
                yield value


def _time(value: int | str) -> int:
    if isinstance(value, int):
        return value
    moment = datetime.fromisoformat(value)
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


def measures(query_id: str, figures: dict[str, Any]) -> Measures:
    """Turn what was observed into a row of the log."""
    rows = int(figures["rows"])
    nulls = {
        name.removeprefix(_FILLED): rows - int(count)
        for name, count in figures.items()
        if name.startswith(_FILLED)
    }
    return Measures(
        query_id,
        rows,
        figures.get("max_id"),
        figures.get("min_ts"),
        figures.get("max_ts"),
        nulls,
    )


_INSERTED = "__tidegate_inserted"


def figures_of(
    session: SparkSession, tables: Tables, definition: TableDefinition, version: int
) -> dict[str, Any]:
    """Run the query with the destination's name meaning what this commit brought into it."""
    rows = read_table(session, tables.path(definition.table), version)
    if definition.tagged:
        rows = rows.where(f"`{TOPIC_COLUMN}` = '{definition.topic}'")
    if definition.shard:
        # Other shards have rows at these positions too; a commit only adds files of its own.
        paths = (unquote(file["path"]) for file in tables.added(definition.table, version))
        names = [path.rpartition("/")[2] for path in paths]
        rows = rows.where(F.col("_metadata.file_name").isin(names))
    if definition.processor is Processor.STEP:
        pos, id = f"`{definition.pos}`", f"`{definition.id}`"
        rows = rows.where(f"block({pos}, {id}, typeof({pos}))")
    rows.createOrReplaceTempView(_INSERTED)
    text = redirected(typed(definition.log), definition.table, _INSERTED)
    found = session.sql(text).limit(2).collect()
    if len(found) != 1:
        raise FlowFailed("it gives no row, or several; write a query that gives one")
    return {name: _plain(value) for name, value in found[0].asDict(recursive=True).items()}


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return str(value)
