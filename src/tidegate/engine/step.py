"""Step: the new rows of a block, appended, or merged by key, in one commit."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidegate.engine.load import transaction
from tidegate.engine.looks import Tables, app_id
from tidegate.model.execution import Work
from tidegate.model.lineage import Definition

_RANK = "__tidegate_rank"


def write_step(
    session: SparkSession, rows: DataFrame, work: Work, tables: Tables, metadata: str
) -> None:
    """Step 5 for the rows of a block: one commit, all transforms together."""
    path = tables.path(work.definition.table)
    if work.definition.keys:
        _merge(session, rows, work, path, metadata)
        return
    options = transaction(work.definition.topic, work.block.seq, metadata)
    rows.write.format("delta").mode("append").options(**options).save(path)


def _merge(session: SparkSession, rows: DataFrame, work: Work, path: str, metadata: str) -> None:
    """Merge the newest row of each key; a row never overwrites a newer one."""
    definition = work.definition
    newest_of_each_key(rows, definition).createOrReplaceTempView("__tidegate_block")
    # A MERGE takes its transaction from the session, which is this execution's own.
    session.conf.set("spark.databricks.delta.write.txnAppId", app_id(definition.topic))
    session.conf.set("spark.databricks.delta.write.txnVersion", str(work.block.seq))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", metadata)
    try:
        session.sql(merge_sql(definition, path))
    finally:
        for name in ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata"):
            session.conf.unset(f"spark.databricks.delta.{name}")


def newest_of_each_key(rows: DataFrame, definition: Definition) -> DataFrame:
    """Keep, of the rows of a block with the same key, the one with the greatest position."""

    keys = [F.col(f"`{key}`") for key in definition.keys]
    newest_first = [F.desc(f"`{definition.pos}`"), F.desc(f"`{definition.id}`")]
    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(*newest_first))
    return rows.withColumn(_RANK, rank).where(f"{_RANK} = 1").drop(_RANK)


def merge_sql(definition: Definition, path: str) -> str:
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
