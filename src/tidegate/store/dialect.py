"""What SQLite and PostgreSQL say differently inside a transaction."""

from __future__ import annotations

from sqlalchemy import Connection, Table, Text, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.store.statement import ask

_ADVISORY_LOCK = select(
    func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name", type_=Text), 0))
)


_CLOCK = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}


def clock(connection: Connection) -> int:
    """Give the store's own time in milliseconds: one clock for all who share the store."""
    now: int = ask(connection, _CLOCK[connection.dialect.name])
    return now


def insert_into(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Start an INSERT that can say ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def hold(connection: Connection, name: str) -> None:
    """Keep other processes from what this name stands for until the transaction ends."""
    # SQLite lets one writer in at a time, so whoever gets here holds everything already.
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"name": f"tidegate {name}"})
