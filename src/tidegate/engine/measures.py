"""What a load sees of its own rows while it writes them: the figures of the ETL log."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidegate.model.execution import Measures

_FILLED = "filled "


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
