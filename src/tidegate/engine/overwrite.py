"""A table's rows replaced as a whole in one commit; what else it is made of stays."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.destination import columns_of
from tidegate.engine.looks import Tables
from tidegate.engine.views import read_table
from tidegate.model.lineage import Definition


def overwrite(
    session: SparkSession,
    tables: Tables,
    definition: Definition,
    rows: DataFrame,
    options: Mapping[str, str],
) -> None:
    """Write the rows in the place of all that the table holds, with their columns.

    Properties and comment stay. A table that gets other columns loses its partitioning and its
    clustering unless they are said again: the first with the write, the second after it.
    """
    path = tables.path(definition.table)
    writer = rows.write.format("delta").mode("overwrite").options(**options)
    partitions = definition.partition_by or tables.partition_columns(definition.table)
    same = columns_of(rows) == columns_of(read_table(session, path))
    if not same or list(partitions) != list(tables.partition_columns(definition.table)):
        writer = writer.option("overwriteSchema", "true").partitionBy(*partitions)
    writer.save(path)


def cluster_again(session: SparkSession, tables: Tables, definition: Definition) -> None:
    """Give a table back the clustering that the lineage wants; does nothing where it has it."""
    if not definition.cluster_by:
        return
    table = f"delta.`{tables.path(definition.table).replace('`', '``')}`"
    detail = session.sql(f"DESCRIBE DETAIL {table}").select("clusteringColumns").collect()[0]
    if list(detail[0] or ()) != list(definition.cluster_by):
        names = ", ".join(f"`{name}`" for name in definition.cluster_by)
        session.sql(f"ALTER TABLE {table} CLUSTER BY ({names})")
