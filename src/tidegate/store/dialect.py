"""What SQLite and PostgreSQL say differently inside a transaction."""

from __future__ import annotations

from sqlalchemy import Connection, Table, Text, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

_ADVISORY_LOCK = select(
    func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name", type_=Text), 0))
)


def insert_into(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Start an INSERT that can say ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def hold(connection: Connection, name: str) -> None:
    """Keep other processes from what this name stands for until the transaction ends."""
    # SQLite lets one writer in at a time, so whoever gets here holds everything already.
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"name": f"tidegate {name}"})
