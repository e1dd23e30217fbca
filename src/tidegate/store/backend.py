"""What the store needs of a database, and which one a URL means."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from tidegate.errors import StoreError
from tidegate.store.postgresql import PostgresBackend
from tidegate.store.sqlite import SqliteBackend


class Backend(Protocol):
    """A database, its connections in autocommit: the store itself says BEGIN and COMMIT."""

    @property
    def engine(self) -> Engine: ...

    @property
    def listening(self) -> Engine | None:
        """Connections of their own to hear other processes on, where the database has a NOTIFY."""

    @property
    def begin(self) -> str:
        """The statement that begins a write."""

    def alone(self) -> AbstractContextManager[None]:
        """Wait until no other process writes, where the database does that badly itself."""

    def commit(self, connection: Connection) -> None: ...

    def should_run_again(self, error: Exception) -> bool:
        """Tell whether a closure failed only because another process was in its way."""

    def explain(self, error: Exception) -> StoreError:
        """Say in one sentence what the driver meant, without secrets."""


def backend_for(url: str, lock_path: Path | None) -> Backend:
    """Choose by the URL's scheme."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise StoreError(
            "the store's URL cannot be read; write sqlite:////path/store.db or"
            " postgresql://user@host/database"
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteBackend.at(parsed, lock_path)
        case "postgresql" | "postgres":
            return PostgresBackend.at(parsed)
        case other:
            raise StoreError(
                f"the store cannot be kept in {other}; write sqlite:////path/store.db or"
                " postgresql://user@host/database"
            )
