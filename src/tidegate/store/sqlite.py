"""The store in an SQLite file: how it is opened, locked and committed, and what its errors mean."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from tidegate.errors import StoreError

BUSY_SECONDS = 20.0
COMMIT_ATTEMPTS = 3

_MEANINGS = {
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full; free some space, then try again",
    sqlite3.SQLITE_BUSY: "is locked by another program; close whatever has it open, then try again",
    sqlite3.SQLITE_LOCKED: "is locked by another program; close whatever has it open, then try"
    " again",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; move that file away, or name another one"
    " in [store] url",
    sqlite3.SQLITE_CORRUPT: "is damaged; put a backup of it back",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "may not be written; check the rights on it and on its folder",
    sqlite3.SQLITE_PERM: "may not be written; check the rights on it and on its folder",
    sqlite3.SQLITE_IOERR: "cannot be read or written because the disk reports an error; look at"
    " the disk",
}


@dataclass(frozen=True)
class SqliteBackend:
    """One file, and beside it the lock file that writers queue at."""

    path: Path
    lock_path: Path
    engine: Engine

    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    listening: ClassVar[None] = None

    @classmethod
    def at(
        cls, url: URL, lock_path: Path | None, *, busy_seconds: float = BUSY_SECONDS
    ) -> SqliteBackend:
        if not url.database or url.database == ":memory:":
            raise StoreError("the store needs a file; write sqlite:////path/store.db")
        path = Path(url.database).absolute()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the store's folder {path.parent} cannot be made ({error.strerror}); check the"
                " rights on what is above it, or name another one in [store] url"
            ) from None
        return cls(path, lock_path or Path(f"{path}.lock"), _engine(path, busy_seconds))

    @contextmanager
    def alone(self) -> Iterator[None]:
        # Waiting here wakes at once; SQLite's own wait sleeps and looks again.
        with self.lock_path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def commit(self, connection: Connection) -> None:
        # A reader may hold up the commit; the transaction stays whole, so only COMMIT is repeated.
        for _ in range(COMMIT_ATTEMPTS - 1):
            try:
                connection.exec_driver_sql("COMMIT")
            except DBAPIError as error:
                if _code(error.orig) != sqlite3.SQLITE_BUSY:
                    raise
            else:
                return
        connection.exec_driver_sql("COMMIT")

    def should_run_again(self, _error: Exception) -> bool:
        return False

    def explain(self, error: Exception) -> StoreError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, OSError):
            meaning = (
                f"cannot be locked ({cause.strerror}); check the rights on {self.lock_path}"
                " and on its folder"
            )
        else:
            meaning = _MEANINGS.get(
                _code(cause), f"refused a statement: {str(cause).partition(chr(10))[0]}"
            )
        return StoreError(f"the store {self.path} {meaning}")


def _engine(path: Path, busy_seconds: float) -> Engine:
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        isolation_level="AUTOCOMMIT",
        # One connection writes, the other reads.
        pool_size=2,
        max_overflow=0,
        connect_args={"timeout": busy_seconds},
    )
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    # Not WAL: SQLite below 3.51.3 can damage the file at a checkpoint.
    for pragma in ("journal_mode = TRUNCATE", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _code(error: BaseException | None) -> int:
    """Give SQLite's primary result code: the low byte of the extended one."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
