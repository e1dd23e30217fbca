"""The store in PostgreSQL: how it is reached, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tidegate.errors import StoreAway, StoreError

CONNECT_SECONDS = 10

_DEADLOCK = "40P01"
_MEANINGS = {
    "53100": "cannot grow because its disk is full; free some space, then try again",
    "53300": "has no connection left; raise max_connections, or run fewer processes",
    "42501": "does not give this user the rights it needs; grant CREATE on the schema",
    "25006": "is read-only, as a standby is; name the primary in [store] url",
}
_PASSING = ("53100", "53300")
"""What somebody may mend while a process waits."""


@dataclass(frozen=True)
class PostgresBackend:
    """One database on a server."""

    name: str
    """What to call it in messages: no password, no options."""
    secrets: tuple[str, ...]
    engine: Engine
    listening: Engine

    # Said aloud because the server's default may be another level.
    begin: ClassVar[str] = "BEGIN ISOLATION LEVEL READ COMMITTED"

    @classmethod
    def at(cls, url: URL) -> PostgresBackend:
        options = {"application_name": "tidegate", "connect_timeout": CONNECT_SECONDS}
        connecting = partial(
            create_engine,
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            connect_args={name: value for name, value in options.items() if name not in url.query},
        )
        # One connection writes, the other reads; after a restart of the server reads find their
        # connection gone and take a new one.
        engine = connecting(pool_size=2, max_overflow=0, pool_pre_ping=True)
        return cls(_name(url), _secrets(url), engine, connecting(poolclass=NullPool))

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def commit(self, connection: Connection) -> None:
        connection.exec_driver_sql("COMMIT")

    def should_run_again(self, error: Exception) -> bool:
        # Closures that run in one transaction may lock rows in another order than those of
        # another process do. PostgreSQL then fails one of them.
        return isinstance(error, DBAPIError) and _sqlstate(error) == _DEADLOCK

    def explain(self, error: Exception) -> StoreError:
        state = _sqlstate(error) if isinstance(error, DBAPIError) else None
        if state in _MEANINGS:
            kind = StoreAway if state in _PASSING else StoreError
            return kind(f"the store {self.name} {_MEANINGS[state]}")
        said = self._said(error)
        if "password" in said:
            return StoreError(
                f"the store {self.name} refused the login; check user and password (in"
                " [store] url, PGPASSWORD or ~/.pgpass)"
            )
        if isinstance(error, DBAPIError) and state is None:
            return StoreAway(
                f"the store {self.name} cannot be reached ({said}); check [store] url and that"
                " the server runs, then try again"
            )
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return StoreAway(
                f"the store {self.name} cut the connection ({said}); try again when the server"
                " is up"
            )
        return StoreError(f"the store {self.name} refused a statement: {said}")

    def _said(self, error: Exception) -> str:
        cause = error.orig if isinstance(error, DBAPIError) else error
        line = str(cause).partition("\n")[0]
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return line


def _name(url: URL) -> str:
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def _secrets(url: URL) -> tuple[str, ...]:
    given = (url.password, *url.normalized_query.get("password", ()))
    return tuple(str(secret) for secret in given if secret)


def _sqlstate(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None
