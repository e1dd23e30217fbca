"""Reload: the whole table anew in one overwrite commit; readers see the old one or the new one."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.load import transaction
from tidegate.engine.looks import Tables
from tidegate.engine.overwrite import cluster_again, overwrite
from tidegate.model.execution import Work


def write_reload(
    session: SparkSession, rows: DataFrame, work: Work, tables: Tables, metadata: str
) -> None:
    """Step 5 for a whole table."""
    definition = work.definition
    options = transaction(definition.topic, work.block.seq, metadata)
    if not work.anew:
        path = tables.path(definition.table)
        rows.write.format("delta").mode("overwrite").options(**options).save(path)
        return
    overwrite(session, tables, definition, rows, options)
    cluster_again(session, tables, definition)
