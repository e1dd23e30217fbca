"""Bringing a store's schema to the revision that this Tidegate knows, before anything is read."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from tidegate.store.backend import Backend
from tidegate.store.dialect import hold
from tidegate.store.schema import REVISION, VERSION_TABLE

_version_table = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32)))


def upgrade(backend: Backend) -> None:
    """Create or migrate the schema; of several processes that open a store one does the work."""
    try:
        with backend.engine.connect() as connection:
            stored = stored_revision(connection)
        if stored != REVISION:
            _migrate(backend)
    except (SQLAlchemyError, OSError) as error:
        raise backend.explain(error) from None


def stored_revision(connection: Connection) -> str | None:
    """Give the revision that the store was last migrated to; None for a new store."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_version_table.c.version_num)).scalar()


def _migrate(backend: Backend) -> None:
    # Alembic takes longer to import than everything else in a start, and is seldom needed.
    from tidegate.store.migrations.steps import run_steps  # noqa: PLC0415

    with backend.alone(), backend.engine.connect() as connection:
        # Said by hand so that schema and version change together or not at all.
        connection.exec_driver_sql(backend.begin)
        hold(connection, "schema")
        run_steps(connection, stored_revision(connection))
        backend.commit(connection)
