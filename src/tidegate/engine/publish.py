"""Publishes a table that was built beside another one: one commit puts it in the other's place.

It is a load like any: the topic's transaction carries the block's seq, so a repeat is skipped, and
what the table records decides. A topic of several replaces its own rows alone.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.destination import columns_of, create_table, in_order
from tidegate.engine.load import (
    already_loaded,
    explain,
    require_recorded,
    skipped,
    transaction,
    written_by,
)
from tidegate.engine.looks import Tables
from tidegate.engine.measures import written
from tidegate.engine.overwrite import cluster_again, overwrite
from tidegate.engine.session import SparkHost
from tidegate.engine.step import newest_of_each_key
from tidegate.engine.views import read_table
from tidegate.errors import FlowFailed, TidegateError, TopicStopped
from tidegate.model.columns import compare
from tidegate.model.execution import Measures, Outcome, Work
from tidegate.model.lineage import TOPIC_COLUMN, Definition
from tidegate.ports import Runtime


class Publisher:
    """A Runner whose rows are those of the shadow, at the version that the block declares."""

    def __init__(self, spark: SparkHost, tables: Tables, runtime: Runtime) -> None:
        self._spark = spark
        self._tables = tables
        self._runtime = runtime

    def run(self, work: Work) -> Outcome:
        definition = work.definition
        session = self._spark.fresh(work.execution.id)
        try:
            recorded = self._tables.recorded(definition)
            rows = self._rows(session, work)
            if already_loaded(recorded, definition, work.block):
                outcome = skipped(recorded, self._runtime.uuid())
            else:
                outcome = self._publish(session, rows, work)
            cluster_again(session, self._tables, definition)
        except TidegateError:
            raise
        except Exception as error:
            raise FlowFailed(explain(error, definition)) from error
        finally:
            self._spark.forget(work.execution.id)
        return replace(outcome, columns=columns_of(rows))

    def interrupt(self, execution_id: str) -> None:
        """Let a publication fail where it stands."""
        self._spark.interrupt(execution_id)

    def _rows(self, session: SparkSession, work: Work) -> DataFrame:
        path, version = self._tables.path(work.beside), work.block.versions[work.beside]
        return in_order(work.definition, read_table(session, path, version))

    def _publish(self, session: SparkSession, rows: DataFrame, work: Work) -> Outcome:
        definition, version = work.definition, work.block.versions[work.beside]
        if not self._tables.exists(definition.table):
            create_table(session, self._tables, definition, rows)
        options = transaction(definition.topic, work.block.seq, written_by(work))
        if not definition.tagged:
            overwrite(session, self._tables, definition, rows, options)
        else:
            self._replace_own(session, definition, rows, options)
        recorded = require_recorded(self._tables, work)
        count = self._tables.rows(work.beside, version)
        seen = Measures(self._runtime.uuid(), count)
        if recorded.version is not None and not definition.tagged:
            files = self._tables.added(definition.table, recorded.version)
            seen = written(seen, files, definition.pos, definition.id)
        note = f"published from {work.beside}, version {version}"
        return Outcome(count, recorded.version, seen, note)

    def _replace_own(
        self,
        session: SparkSession,
        definition: Definition,
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
