"""Landing: rows of any flow brought into a table of the lake, each batch exactly once.

Every row gets the batch's pos and an id that is unique within the batch, with gaps. They are called
`pos` and `id`, or `_pos` and `_seq` where the rows have a column of either name themselves. Which
pair it is, the first landing settles.

A batch is appended; with keys, its rows take the place of older ones with the same key, and a row
that has not changed is not written. Whether it has changed, its `_hash` tells. There, a column that
the rows lack is NULL, as everything about the older row is replaced.

A column without a type (nothing but NULLs so far) is left out until it has one. New columns are
added; one of another type fails the batch, unless the table's type holds all of its values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidegate.crashpoint import crashpoint
from tidegate.errors import TidegateError, TopicStopped
from tidegate.model.execution import Landed
from tidegate.model.position import GREATEST, Position
from tidegate.ports.outside import Batch, LandedBatch, Recorded, Runtime
from tidegate.spark.delta_log import commits, our_metadata
from tidegate.spark.delta_writes import (
    column_sql,
    create_table,
    is_recorded,
    quoted,
    register_table,
    require_recorded,
    session_metadata,
    session_transaction,
    transaction,
)
from tidegate.spark.landed_rows import (
    LandedNames,
    changed,
    clashing_key,
    fitting,
    hashed,
    landed_names,
    newest_of_each_key,
)
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost, failed, sentence

_BATCH = "__tidegate_batch"


class DeltaLanding:
    """A Landing into Delta tables, for pipes, topologies and jobs alike.

    One landing at a time goes on in a session: a MERGE takes its transaction from there. Whoever
    runs the execution lets go of its sessions.
    """

    def __init__(
        self,
        spark: SparkHost,
        tables: Tables,
        runtime: Runtime,
        last_pos: Callable[[str], int | None],
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._runtime = runtime
        self._last_pos = last_pos
        """Gives the pos to which the store believes a table to be filled."""

    def pos_for(self, table: str) -> int:
        names = landed_names(self._tables.column_names(table), ())
        newest = self._tables.look(table, names.pos, names.id).newest
        known = (newest.pos if newest else None, self._last_pos(table))
        return max((self._runtime.now(), *(pos + 1 for pos in known if pos is not None)))

    def land(self, batch: Batch, rows: Any) -> LandedBatch:
        recorded = self._tables.recorded(batch.table, batch.writer)
        if self._is_in(recorded, batch):
            return self._landed(batch, recorded, skipped=True)
        self._require_newest(batch)
        try:
            frame = self._frame(batch, rows)
            if not frame.columns and not self._tables.exists(batch.table):
                # Nothing says what the table is to look like, nor what its position is called.
                return LandedBatch(0, _landed(batch, -1, -1))
            self._write(batch, frame)
        except TidegateError:
            raise
        except Exception as error:
            # A conflict, or a commit whose answer was lost: what is recorded decides.
            recorded = self._tables.recorded(batch.table, batch.writer)
            if not self._is_in(recorded, batch):
                raise failed(error, _explain(error, batch)) from error
        crashpoint("landing.after_write")
        recorded = require_recorded(self._tables, batch.table, batch.writer, batch.seq)
        return self._landed(batch, recorded, skipped=False)

    def _is_in(self, recorded: Recorded, batch: Batch) -> bool:
        if not is_recorded(recorded, batch.table, batch.writer, batch.seq):
            return False
        pos = self._pos_of(batch.table, recorded)
        if pos == batch.pos:
            return True
        raise TopicStopped(
            f"{batch.table} holds block {batch.seq} of {batch.writer} as landed at pos {pos}, and"
            f" the store declares it at pos {batch.pos}"
        )

    def _pos_of(self, table: str, recorded: Recorded) -> Any:
        """Read from a commit which pos its rows got."""
        found = self._tables.open(table)
        for commit in commits(found) if found else ():
            if commit["version"] == recorded.version:
                return our_metadata(commit).get("pos")
        return None

    def _require_newest(self, batch: Batch) -> None:
        """Refuse rows behind those that the table has: whoever reads it has passed their place."""
        names = landed_names(self._tables.column_names(batch.table), ())
        newest = self._tables.look(batch.table, names.pos, names.id).newest
        if newest is not None and newest.pos >= batch.pos:
            raise TopicStopped(
                f"{batch.table} holds rows at {newest}, landed since block {batch.seq} of"
                f" {batch.writer} was declared at pos {batch.pos}: rows behind them would be read"
                " by nobody; let one flow alone land in a table"
            )

    def _frame(self, batch: Batch, rows: Any) -> DataFrame:
        if isinstance(rows, pa.Table):
            return self._spark.fresh(batch.execution_id).createDataFrame(rows)
        frame: DataFrame = rows
        return frame

    def _write(self, batch: Batch, rows: DataFrame) -> None:
        table = self._schema(batch)
        names = landed_names(table.names if table else (), rows.columns)
        frame = rows.selectExpr(*fitting(batch, names, rows.schema, table))
        if batch.keys:
            frame = newest_of_each_key(hashed(frame), batch.keys)
        if batch.keys and table is not None:
            frame = changed(frame, self._read(frame, batch), batch.keys)
        frame = frame.selectExpr(
            f"{batch.pos}L AS {quoted(names.pos)}",
            f"monotonically_increasing_id() AS {quoted(names.id)}",
            "*",
        )
        session = frame.sparkSession
        if table is None:
            self._create(session, batch, frame.schema)
        self._register(session, batch.table)
        crashpoint("landing.before_write")
        if batch.keys and table is not None:
            self._merge(session, batch, frame)
        else:
            self._append(batch, frame)

    def _schema(self, batch: Batch) -> StructType | None:
        """Give the columns of the table; None where it is to be made, or made anew."""
        found = self._tables.open(batch.table)
        if found is None:
            return None
        if self._tables.is_blank(batch.table):
            # One that a person made before the first landing has to stay as it is.
            made_by = {our_metadata(commit).get("topic") for commit in commits(found)}
            if made_by == {batch.writer}:
                return None
        # Delta writes a schema down as Spark does.
        return StructType.fromJson(json.loads(found.schema().to_json()))

    def _create(self, session: SparkSession, batch: Batch, schema: StructType) -> None:
        columns = ", ".join(map(column_sql, schema.fields))
        with session_metadata(session, _written_by(batch)):
            create_table(session, self._tables, batch.table, columns)

    def _register(self, session: SparkSession, table: str) -> None:
        """Let Steps and people read the table by its name."""
        if table not in self._spark.catalogued:
            register_table(session, table, self._tables.path(table))
            self._spark.catalogued.add(table)

    def _read(self, rows: DataFrame, batch: Batch) -> DataFrame:
        return rows.sparkSession.read.format("delta").load(self._tables.path(batch.table))

    def _append(self, batch: Batch, frame: DataFrame) -> None:
        options = transaction(batch.writer, batch.seq, _written_by(batch))
        writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.options(**options).save(self._tables.path(batch.table))

    def _merge(self, session: SparkSession, batch: Batch, frame: DataFrame) -> None:
        """Merge by keys; one in which nothing has changed is committed too, and records the seq."""
        frame.createOrReplaceTempView(_BATCH)
        try:
            with session_transaction(session, batch.writer, batch.seq, _written_by(batch)):
                session.sql(
                    "MERGE WITH SCHEMA EVOLUTION INTO"
                    f" delta.{quoted(self._tables.path(batch.table))} AS old"
                    f" USING {_BATCH} AS new ON {_same_key(batch.keys)}"
                    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
        finally:
            session.catalog.dropTempView(_BATCH)

    def _landed(self, batch: Batch, recorded: Recorded, *, skipped: bool) -> LandedBatch:
        rows, version = recorded.rows or 0, recorded.version
        if version is None:
            raise TopicStopped(f"{batch.table} does not tell which commit holds block {batch.seq}")
        names = landed_names(self._tables.column_names(batch.table), ())
        files = (
            json.loads(file.get("stats") or "{}").get("maxValues") or {}
            for file in self._tables.added(batch.table, version)
        )
        return LandedBatch(
            rows, _landed(batch, _greatest_id(files, names, batch.pos), version), skipped
        )


def _greatest_id(files: Iterable[Mapping[str, Any]], names: LandedNames, pos: int) -> int:
    """Find the greatest id that a pos has, by what files tell of their greatest values.

    Where a file does not tell, it is the greatest of all: no other row ever gets this pos.
    """
    ids = [-1]
    for greatest in files:
        if greatest.get(names.pos, pos) == pos:
            ids.append(greatest.get(names.id, GREATEST) if names.pos in greatest else GREATEST)
    return max(ids)


def _landed(batch: Batch, greatest_id: int, version: int) -> Landed:
    return Landed(batch.table, Position(batch.pos, greatest_id), batch.complete_to, version)


def _written_by(batch: Batch) -> str:
    """Say in the commit whose write it is, and at which pos its rows are."""
    return json.dumps(
        {
            "topic": batch.writer,
            "seq": batch.seq,
            "pos": batch.pos,
            "execution": batch.execution_id,
        }
    )


def _same_key(keys: Iterable[str]) -> str:
    """Write the condition of a MERGE; NULL is a key like others."""
    return " AND ".join(f"old.{quoted(key)} <=> new.{quoted(key)}" for key in keys)


def _explain(error: BaseException, batch: Batch) -> str:
    key = clashing_key(error)
    if key is None:
        return f"the rows could not be landed in {batch.table}: {sentence(error)}"
    return (
        f"two rows for {batch.table} have the key {key} and differ, and no _updated tells which is"
        " the newer one; give each version its own _updated, or one row a key"
    )
