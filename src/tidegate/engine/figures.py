"""Figures of the user's own over the rows that a block brought: `logs/<table>.sql`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidegate.engine.looks import Tables
from tidegate.engine.views import read_table
from tidegate.errors import FlowFailed
from tidegate.model.lineage import TOPIC_COLUMN, Definition, Processor
from tidegate.model.viewedit import redirected, typed

_INSERTED = "__tidegate_inserted"


def figures_of(
    session: SparkSession, tables: Tables, definition: Definition, version: int
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
