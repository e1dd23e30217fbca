"""What every write to a table of the lake needs: its transaction, its judge, its catalog entry.

Delta's own log is the judge. Each write carries the writer as transaction id and the seq as its
version, so Delta drops a repeat; what is recorded there is read before the write and after it, from
the files and not from a cache of the JVM.

    recorded < seq   write, read back, require recorded = seq
    recorded = seq   it is in: skip the write
    recorded > seq   the table is ahead of the store: stop
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from tidegate.errors import TopicStopped
from tidegate.ports.outside import Recorded
from tidegate.spark.looks import Tables, app_id

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def transaction(writer: str, seq: int, metadata: str) -> dict[str, str]:
    """Give the options of a DataFrameWriter that make a repeat of the write a no-op."""
    return {"txnAppId": app_id(writer), "txnVersion": str(seq), "userMetadata": metadata}


@contextmanager
def session_transaction(
    session: SparkSession, writer: str, seq: int, metadata: str
) -> Iterator[None]:
    """Give the one statement inside its transaction: a MERGE takes it from the session."""
    settings = {
        "spark.databricks.delta.write.txnAppId": app_id(writer),
        "spark.databricks.delta.write.txnVersion": str(seq),
        _METADATA: metadata,
    }
    with _settings(session, settings):
        yield


@contextmanager
def session_metadata(session: SparkSession, metadata: str) -> Iterator[None]:
    """Let a statement that makes or changes a table say whose it is, without a transaction."""
    with _settings(session, {_METADATA: metadata}):
        yield


@contextmanager
def _settings(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


def is_recorded(recorded: Recorded, table: str, writer: str, seq: int) -> bool:
    """Tell whether a table has a writer's seq; raise where table and store cannot both be right."""
    if recorded.seq < seq:
        return False
    if recorded.seq > seq:
        raise TopicStopped(
            f"{table} already holds block {recorded.seq} of {writer}, and the store is only at"
            f" block {seq}: was the store restored from an old copy?"
        )
    if recorded.version is None:
        raise TopicStopped(
            f"{table} records block {seq} of {writer}, but the commit that wrote it is gone"
            " from its log: whether it holds the rows that the store declares cannot be told"
        )
    return True


def require_recorded(tables: Tables, table: str, writer: str, seq: int) -> Recorded:
    """Read back what a table records after a write, which must be the seq at hand."""
    recorded = tables.recorded(table, writer)
    if recorded.seq != seq:
        tables.require_there()
        raise TopicStopped(
            f"{table} records block {recorded.seq} after block {seq} was written; somebody else"
            f" writes under the name of {writer}"
        )
    return recorded


def create_table(
    session: SparkSession, tables: Tables, table: str, columns: str, layout: str = ""
) -> None:
    """Make a table, or make one that was never written anew; its columns are given as SQL.

    It is made before its first write: two first writes to one path would conflict.
    """
    name = quoted_table(table)
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.partition('.')[0])}")
    if tables.exists(table):
        register_table(session, table, tables.path(table))
    else:
        # The catalog may still know a table whose files are gone.
        session.sql(f"DROP TABLE IF EXISTS {name}")
    session.sql(
        f"CREATE OR REPLACE TABLE {name} ({columns}) USING DELTA{layout}"
        f" LOCATION {literal(tables.path(table))}"
    )


def register_table(session: SparkSession, table: str, path: str) -> None:
    """Put a table that stands in the lake into the session's catalog."""
    if session.catalog.tableExists(table):
        return
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.partition('.')[0])}")
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {quoted_table(table)} USING DELTA LOCATION {literal(path)}"
    )


def column_sql(field: StructField) -> str:
    """Write a column as CREATE TABLE wants it; every column may be NULL."""
    return f"{quoted(field.name)} {type_sql(field.dataType)}"


def type_sql(kind: DataType) -> str:
    """Write a type as SQL, whatever the fields inside of it are called."""
    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {type_sql(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{type_sql(kind.elementType)}>"
        case MapType():
            return f"map<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
        case _:
            return kind.simpleString()


def quoted(name: str) -> str:
    """Write a name as Spark SQL takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(table: str) -> str:
    """Write the name of a table of the lake, `<db>.<table>`, for Spark SQL."""
    database, _, name = table.partition(".")
    return f"{quoted(database)}.{quoted(name)}"


def literal(text: str) -> str:
    """Write a text as a Spark string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
