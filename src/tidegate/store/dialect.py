"""What SQLite and PostgreSQL say differently inside a transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    any_,
    bindparam,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.store.schema import JsonText
from tidegate.store.statement import ask

_ADVISORY_LOCK = select(
    func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name", type_=Text), 0))
)


_CLOCK = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}


def clock(connection: Connection) -> int:
    """Give the store's own time in milliseconds: one clock for all who share the store."""
    now: int = ask(connection, f"SELECT {_CLOCK[connection.dialect.name]}")
    return now


def clock_column(dialect: str) -> ColumnElement[int]:
    """Give the same for a statement that reads a row of that very moment."""
    return literal_column(_CLOCK[dialect], BigInteger)


def among(dialect: str, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Say that a column is one of a list, which is given as one value however long it is."""
    if dialect == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(column.type)))
    listed = func.json_each(bindparam(name, type_=JsonText)).table_valued("value")
    return column.in_(select(listed.c.value))


def insert_into(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Start an INSERT that can say ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def hold(connection: Connection, name: str) -> None:
    """Keep other processes from what this name stands for until the transaction ends."""
    # SQLite lets one writer in at a time, so whoever gets here holds everything already.
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"name": f"tidegate {name}"})
