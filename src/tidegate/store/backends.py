"""SQLite and PostgreSQL: how each is opened, locked, upgraded, committed, and what differs."""

from __future__ import annotations

import fcntl
import logging
import selectors
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from psycopg import Connection as Heard
from psycopg import Error as HeardError
from sqlalchemy import (
    ARRAY,
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    any_,
    bindparam,
    create_engine,
    event,
    func,
    inspect,
    literal_column,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from tidegate.errors import StoreAway, StoreError
from tidegate.store.schema import REVISION, VERSION_TABLE, JsonText

_ADVISORY_LOCK = select(
    func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name", type_=Text), 0))
)
CLOCK = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}


def clock_column(dialect: str) -> ColumnElement[int]:
    """Give the same for a statement that reads a row of that very moment."""
    return literal_column(CLOCK[dialect], BigInteger)


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
_PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""What somebody may mend while a process waits."""


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
        kind = StoreAway if _code(cause) in _PASSING else StoreError
        return kind(f"the store {self.path} {meaning}")


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


CONNECT_SECONDS = 10
_DEADLOCK = "40P01"
_MEANINGS_POSTGRESQL = {
    "53100": "cannot grow because its disk is full; free some space, then try again",
    "53300": "has no connection left; raise max_connections, or run fewer processes",
    "42501": "does not give this user the rights it needs; grant CREATE on the schema",
    "25006": "is read-only, as a standby is; name the primary in [store] url",
}
_PASSING_POSTGRESQL = ("53100", "53300")
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
        if state in _MEANINGS_POSTGRESQL:
            kind = StoreAway if state in _PASSING_POSTGRESQL else StoreError
            return kind(f"the store {self.name} {_MEANINGS_POSTGRESQL[state]}")
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


CHANNEL = "tidegate_messages"
AGAIN_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Notices:
    """Implements `ports.Listening`: a thread that waits, and wakes at each notice."""

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self._engine, self._wake = engine, wake
        self._stop, self._stopping = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._stopping.close()
        self._thread.join()
        self._stop.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as stop:
            stop.register(self._stop, selectors.EVENT_READ)
            while True:
                try:
                    self._hear()
                except (SQLAlchemyError, HeardError) as error:
                    _log.warning("notices of the store are not heard: %s", _first_line(error))
                if stop.select(AGAIN_SECONDS):
                    return

    def _hear(self) -> None:
        """Ring at notices until the connection is cut or the end is wanted."""
        with self._engine.connect() as connection:
            try:
                self._ring_at_notices(connection)
            finally:
                # It listens, and may be cut: nobody else is to have it.
                connection.invalidate()

    def _ring_at_notices(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        heard = connection.connection.driver_connection
        assert isinstance(heard, Heard)
        # For whatever came before this connection listened.
        self._wake()
        with selectors.DefaultSelector() as either:
            either.register(self._stop, selectors.EVENT_READ)
            either.register(heard, selectors.EVENT_READ)
            while all(key.fileobj is not self._stop for key, _ in either.select()):
                if any(True for _ in heard.notifies(timeout=0)):
                    self._wake()


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", error)).partition("\n")[0]


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
