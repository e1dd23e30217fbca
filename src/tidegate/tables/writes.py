"""Step 5: a table created, appended to, merged into, overwritten or published, in one commit each.

Every write carries the block's seq as Delta's transaction version, so a repeat is skipped, and what
the table records decides. A topic of several replaces its own rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidegate.errors import FlowFailed, TidegateError, TopicStopped
from tidegate.model.execution import Outcome
from tidegate.model.records import Columns, Measures
from tidegate.ports.outside import Recorded, Runtime
from tidegate.spark.delta_writes import (
    create_table,
    is_recorded,
    literal,
    quoted,
    require_recorded,
    session_transaction,
    transaction,
    type_sql,
)
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost, failed, sentence
from tidegate.tables.definition import TOPIC_COLUMN, Processor, TableDefinition
from tidegate.tables.measures import written
from tidegate.tables.runner import Load
from tidegate.tables.views import BAD_POSITION, read_table


def already_loaded(recorded: Recorded, load: Load) -> bool:
    """Hold the block against what the table records; raise where the two cannot both be true."""
    table, topic, block = load.definition.table, load.definition.topic, load.block
    if not is_recorded(recorded, table, topic, block.seq):
        return False
    if (recorded.last, recorded.next) == (block.last, block.next):
        return True
    raise TopicStopped(
        f"{table} holds block {block.seq} of {topic} as rows in ({recorded.last}, {recorded.next}]"
        f" and the store declares it as ({block.last}, {block.next}]"
    )


def recorded_of(tables: Tables, load: Load) -> Recorded:
    """Read back what the table records after a write, which must be the block at hand."""
    definition = load.definition
    return require_recorded(tables, definition.table, definition.topic, load.block.seq)


def written_by(load: Load) -> str:
    """Say in the commit whose write it is, and of which block."""
    block = load.block
    return json.dumps(
        {
            "topic": load.definition.topic,
            "seq": block.seq,
            "last": [block.last.pos, block.last.id],
            "next": [block.next.pos, block.next.id],
            "execution": load.execution.id,
            "attempt": load.execution.attempt,
            "term": load.execution.term,
        }
    )


def skipped(recorded: Recorded, query_id: str) -> Outcome:
    """Give the outcome of a block that an earlier attempt has written."""
    rows = recorded.rows or 0
    note = "the block was in the table already: its write was skipped"
    return Outcome(rows, note, recorded.version, records=(Measures(query_id, rows),))


def explain(error: BaseException, definition: TableDefinition) -> str:
    """Say why the load failed; our own markers first."""
    text = str(error)
    if BAD_POSITION in text:
        return (
            f"a view of {definition.topic} gives a {definition.pos} or {definition.id} outside of"
            " the block; give on the base row's position as block() got it"
        )
    if "TIDEGATE_KIND" in text:
        return " ".join(text.partition("TIDEGATE_KIND")[2].split("SQLSTATE")[0].split())
    return sentence(error)


@dataclass(frozen=True)
class Difference:
    """What a table lacks, and what cannot be mended by adding to it."""

    added: tuple[str, ...]
    misfits: tuple[str, ...]
    """In words, one a column."""


def compare(
    given: Mapping[str, str], table: Mapping[str, str], before: Mapping[str, str] | None
) -> Difference:
    """Hold the columns of a view against those of its table, and against what it gave before.

    A table may have columns that the view never gave: of a sibling topic, or added by hand. Names
    are compared without regard to case, as Spark does.
    """
    held = {name.lower(): kind for name, kind in table.items()}
    now = {name.lower() for name in given}
    misfits = [
        f"{name} was {held[name.lower()]} and is {kind} now"
        for name, kind in given.items()
        if held.get(name.lower(), kind) != kind
    ]
    owed = table if before is None else before
    misfits += [f"{name} is gone" for name in owed if name.lower() not in now]
    added = tuple(name for name in given if name.lower() not in held)
    return Difference(added, tuple(misfits))


def fit_table(session: SparkSession, tables: Tables, load: Load, rows: DataFrame) -> None:
    """Make the destination ready for the rows: created, or with their new columns.

    It is created before the first write: two first writes to one path would conflict.
    """
    definition = load.definition
    blank = load.block.seq == 1 and tables.is_blank(definition.table)
    if blank or not tables.exists(definition.table):
        _create(session, tables, definition, rows)
    elif columns_of(rows) != load.columns and not load.anew:
        _widen(session, tables, load, rows)


def _widen(session: SparkSession, tables: Tables, load: Load, rows: DataFrame) -> None:
    """Add the columns that are new; stop the topic over any other difference."""
    definition, path = load.definition, tables.path(load.definition.table)
    table = read_table(session, path)
    # A sibling topic's columns are not missing from one that has never given them.
    before = {} if load.columns is None and definition.tagged else load.columns
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


def _create(
    session: SparkSession, tables: Tables, definition: TableDefinition, rows: DataFrame
) -> None:
    """Make the table, with the columns of these rows and what the lineage says of it."""
    columns = ", ".join(_column(definition, field) for field in rows.schema.fields)
    create_table(session, tables, definition.table, columns, _layout(definition))


def in_order(definition: TableDefinition, rows: DataFrame) -> DataFrame:
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


def _column(definition: TableDefinition, field: StructField) -> str:
    if field.dataType.typeName() == "void":
        raise FlowFailed(f"its view gives the column {field.name} no type; CAST the NULL to one")
    comment = definition.comments.get(field.name)
    note = f" COMMENT {literal(comment)}" if comment else ""
    return f"{quoted(field.name)} {type_sql(field.dataType)}{note}"


def _layout(definition: TableDefinition) -> str:
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


_RANK = "__tidegate_rank"


def write_step(
    session: SparkSession, rows: DataFrame, load: Load, tables: Tables, metadata: str
) -> None:
    """Step 5 for the rows of a block: one commit, all transforms together."""
    path = tables.path(load.definition.table)
    if load.definition.keys:
        _merge(session, rows, load, path, metadata)
        return
    options = transaction(load.definition.topic, load.block.seq, metadata)
    rows.write.format("delta").mode("append").options(**options).save(path)


def _merge(session: SparkSession, rows: DataFrame, load: Load, path: str, metadata: str) -> None:
    """Merge the newest row of each key; a row never overwrites a newer one."""
    definition = load.definition
    newest_of_each_key(rows, definition).createOrReplaceTempView("__tidegate_block")
    # A MERGE takes its transaction from the session, which is this execution's own.
    with session_transaction(session, definition.topic, load.block.seq, metadata):
        session.sql(merge_sql(definition, path))


def newest_of_each_key(rows: DataFrame, definition: TableDefinition) -> DataFrame:
    """Keep, of the rows of a block with the same key, the one with the greatest position."""

    keys = [F.col(f"`{key}`") for key in definition.keys]
    newest_first = [F.desc(f"`{definition.pos}`"), F.desc(f"`{definition.id}`")]
    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(*newest_first))
    return rows.withColumn(_RANK, rank).where(f"{_RANK} = 1").drop(_RANK)


def merge_sql(definition: TableDefinition, path: str) -> str:
    """Write the MERGE of a block into its table."""
    table = path.replace("`", "``")
    same_key = " AND ".join(f"old.`{key}` <=> new.`{key}`" for key in definition.keys)
    pos, id = f"`{definition.pos}`", f"`{definition.id}`"
    not_older = f"(new.{pos} > old.{pos} OR (new.{pos} = old.{pos} AND new.{id} >= old.{id}))"
    if not definition.deleted:
        return (
            f"MERGE INTO delta.`{table}` AS old USING __tidegate_block AS new ON {same_key}"
            f" WHEN MATCHED AND {not_older} THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        )
    flag = f"coalesce(({definition.deleted}), false) AS __tidegate_gone"
    return (
        f"MERGE INTO delta.`{table}` AS old"
        f" USING (SELECT *, {flag} FROM __tidegate_block) AS new ON {same_key}"
        f" WHEN MATCHED AND new.__tidegate_gone AND {not_older} THEN DELETE"
        f" WHEN MATCHED AND {not_older} THEN UPDATE SET *"
        " WHEN NOT MATCHED AND NOT new.__tidegate_gone THEN INSERT *"
    )


def overwrite(
    session: SparkSession,
    tables: Tables,
    definition: TableDefinition,
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


def cluster_again(session: SparkSession, tables: Tables, definition: TableDefinition) -> None:
    """Give a table back the clustering that the lineage wants; does nothing where it has it."""
    if not definition.cluster_by:
        return
    table = f"delta.`{tables.path(definition.table).replace('`', '``')}`"
    detail = session.sql(f"DESCRIBE DETAIL {table}").select("clusteringColumns").collect()[0]
    if list(detail[0] or ()) != list(definition.cluster_by):
        names = ", ".join(f"`{name}`" for name in definition.cluster_by)
        session.sql(f"ALTER TABLE {table} CLUSTER BY ({names})")


def write_reload(
    session: SparkSession, rows: DataFrame, load: Load, tables: Tables, metadata: str
) -> None:
    """Step 5 for a whole table."""
    definition = load.definition
    options = transaction(definition.topic, load.block.seq, metadata)
    if not load.anew:
        path = tables.path(definition.table)
        rows.write.format("delta").mode("overwrite").options(**options).save(path)
        return
    overwrite(session, tables, definition, rows, options)
    cluster_again(session, tables, definition)


class Publisher:
    """Loads the rows of a table that was built beside, at the version that the block declares."""

    def __init__(self, spark: SparkHost, tables: Tables, runtime: Runtime) -> None:
        self._spark = spark
        self._tables = tables
        self._runtime = runtime

    def run(self, load: Load) -> Outcome:
        """Put what was built beside in the place of the topic's rows, once."""
        definition = load.definition
        session = self._spark.fresh(load.execution.id)
        try:
            recorded = self._tables.recorded(definition.table, definition.topic)
            rows = self._rows(session, load)
            if already_loaded(recorded, load):
                outcome = skipped(recorded, self._runtime.uuid())
            else:
                outcome = self._publish(session, rows, load)
            cluster_again(session, self._tables, definition)
            columns = Columns(columns_of(rows))
        except TidegateError:
            raise
        except Exception as error:
            self._tables.require_there()
            raise failed(error, explain(error, definition)) from error
        finally:
            self._spark.forget(load.execution.id)
        return replace(outcome, records=(*outcome.records, columns))

    def interrupt(self, execution_id: str) -> None:
        """Let a publication fail where it stands."""
        self._spark.interrupt(execution_id)

    def _rows(self, session: SparkSession, load: Load) -> DataFrame:
        path, version = self._tables.path(load.beside), load.block.versions[load.beside]
        return in_order(load.definition, read_table(session, path, version))

    def _publish(self, session: SparkSession, rows: DataFrame, load: Load) -> Outcome:
        definition, version = load.definition, load.block.versions[load.beside]
        if not self._tables.exists(definition.table):
            _create(session, self._tables, definition, rows)
        options = transaction(definition.topic, load.block.seq, written_by(load))
        if not definition.tagged:
            overwrite(session, self._tables, definition, rows, options)
        else:
            self._replace_own(session, definition, rows, options)
        recorded = recorded_of(self._tables, load)
        count = self._tables.rows(load.beside, version)
        seen = Measures(self._runtime.uuid(), count)
        if recorded.version is not None and not definition.tagged:
            files = self._tables.added(definition.table, recorded.version)
            seen = written(seen, files, definition.pos, definition.id)
        note = f"published from {load.beside}, version {version}"
        return Outcome(count, note, recorded.version, records=(seen,))

    def _replace_own(
        self,
        session: SparkSession,
        definition: TableDefinition,
        rows: DataFrame,
        options: dict[str, str],
    ) -> None:
        """Replace the rows of one topic; those of the others stay."""
        path = self._tables.path(definition.table)
        table = read_table(session, path)
        misfits = compare(columns_of(rows), columns_of(table), {}).misfits
        if misfits:
            raise TopicStopped(
                f"{'; '.join(misfits)}, and {definition.table} has rows of other topics with it;"
                " give the column another name"
            )
        own = f"`{TOPIC_COLUMN}` = '{definition.topic}'"
        if definition.keys:
            # A key is the table's, not the topic's: the newest row of all topics stays.
            others = table.where(f"NOT ({own})")
            every = others.unionByName(rows, allowMissingColumns=True)
            writer = newest_of_each_key(every, definition).write
        else:
            writer = rows.write.option("replaceWhere", own)
        writer.format("delta").mode("overwrite").option("mergeSchema", "true").options(
            **options
        ).save(path)
