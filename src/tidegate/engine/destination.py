"""The table that a topic writes: made before its first write, with what the lineage says of it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidegate.engine.looks import Tables
from tidegate.engine.views import literal, read_table, register_table
from tidegate.errors import FlowFailed, TopicStopped
from tidegate.model.columns import compare
from tidegate.model.execution import Work
from tidegate.model.lineage import TOPIC_COLUMN, Definition, Processor


def fit_table(session: SparkSession, tables: Tables, work: Work, rows: DataFrame) -> None:
    """Make the destination ready for the rows: created, or with their new columns.

    It is created before the first write: two first writes to one path would conflict.
    """
    definition = work.definition
    blank = work.block.seq == 1 and tables.is_blank(definition.table)
    if blank or not tables.exists(definition.table):
        create_table(session, tables, definition, rows)
    elif columns_of(rows) != work.columns and not work.anew:
        _widen(session, tables, work, rows)


def _widen(session: SparkSession, tables: Tables, work: Work, rows: DataFrame) -> None:
    """Add the columns that are new; stop the topic over any other difference."""
    definition, path = work.definition, tables.path(work.definition.table)
    table = read_table(session, path)
    # A sibling topic's columns are not missing from one that has never given them.
    before = {} if work.columns is None and definition.tagged else work.columns
    difference = compare(columns_of(rows), columns_of(table), before)
    if difference.misfits:
        raise TopicStopped(
            f"its view does not fit {definition.table} any more:"
            f" {'; '.join(difference.misfits)}; give the columns as they were, or build the table"
            f" anew: tidegate rebuild {definition.topic}"
        )
    if difference.added:
        fields = [field for field in rows.schema.fields if field.name in difference.added]
        columns = ", ".join(_column(definition, field) for field in fields)
        session.sql(f"ALTER TABLE delta.`{path.replace('`', '``')}` ADD COLUMNS ({columns})")


def columns_of(rows: DataFrame) -> dict[str, str]:
    """Give the fingerprint of a schema: its columns with their types."""
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}


def create_table(
    session: SparkSession, tables: Tables, definition: Definition, rows: DataFrame
) -> None:
    """Make the table, with the columns of these rows and what the lineage says of it."""
    database, _, name = definition.table.partition(".")
    session.sql(f"CREATE SCHEMA IF NOT EXISTS `{database}`")
    if tables.exists(definition.table):
        register_table(session, definition.table, tables.path(definition.table))
    else:
        # The catalog may still know a table whose files are gone.
        session.sql(f"DROP TABLE IF EXISTS `{database}`.`{name}`")
    session.sql(
        f"CREATE OR REPLACE TABLE `{database}`.`{name}`"
        f" ({', '.join(_column(definition, field) for field in rows.schema.fields)})"
        f" USING DELTA{_layout(definition)} LOCATION {literal(tables.path(definition.table))}"
    )


def in_order(definition: Definition, rows: DataFrame) -> DataFrame:
    """Put the position first: Delta keeps statistics of the first columns only."""

    if definition.tagged:
        rows = rows.withColumn(TOPIC_COLUMN, F.lit(definition.topic))
    if definition.processor is Processor.RELOAD:
        return rows
    position = (definition.pos.lower(), definition.id.lower())
    given = rows.columns
    names = {name.lower(): name for name in given}
    missing = [name for name in position if name not in names]
    if missing:
        raise FlowFailed(
            f"its view does not give the column {missing[0]}; select the base row's"
            f" {definition.base_pos} and {definition.base_id}"
        )
    rest = [name for name in given if name.lower() not in position]
    ordered = [*(names[name] for name in position), *rest]
    # Most views give it first, and Spark would analyse all of the query once more.
    return rows if ordered == given else rows.select([f"`{name}`" for name in ordered])


def _column(definition: Definition, field: StructField) -> str:
    kind = field.dataType.simpleString()
    if kind == "void":
        raise FlowFailed(f"its view gives the column {field.name} no type; CAST the NULL to one")
    comment = definition.comments.get(field.name)
    note = f" COMMENT {literal(comment)}" if comment else ""
    return f"`{field.name}` {kind}{note}"


def _layout(definition: Definition) -> str:
    parts: list[str] = []
    if definition.comment:
        parts.append(f"COMMENT {literal(definition.comment)}")
    if definition.partition_by:
        parts.append(f"PARTITIONED BY ({_names(definition.partition_by)})")
    if definition.cluster_by:
        parts.append(f"CLUSTER BY ({_names(definition.cluster_by)})")
    if definition.properties:
        pairs = ", ".join(
            f"{literal(key)} = {literal(value)}" for key, value in definition.properties.items()
        )
        parts.append(f"TBLPROPERTIES ({pairs})")
    return "".join(f" {part}" for part in parts)


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in columns)
