"""The real store over SQLite in memory: its SQL, one transaction a closure, and its failures.

Guards live in the statements of the store, so the statements are the real ones. What is played is
the way there: a call may fail before the commit, or after it, when only the answer is lost.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import StaticPool

from tidegate.errors import StoreAway
from tidegate.model.flow import Kind
from tidegate.store import SqlStore, open_store, store_over
from tidegate.store.backends import Backend
from tidegate.store.definitions import ReadDefinition
from tidegate.store.schema import metadata
from tidegate.store.writer import Reader, Writer

from .process import Process

T = TypeVar("T")

_EPOCH_DAY = 2440587.5
_DAY = 86_400_000


@cache
def _template(triggers: tuple[str, ...]) -> bytes:
    """Give a file with the schema and some triggers in it, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        open_store(f"sqlite:///{path}", {}).close()
        with closing(sqlite3.connect(path)) as connection:
            for trigger in (*triggers, *_notices()):
                connection.execute(trigger)
            connection.commit()
            return connection.serialize()


def _notices() -> Iterator[str]:
    """Let the database say which tables a transaction changes."""
    for table in metadata.tables:
        for change in ("INSERT", "UPDATE", "DELETE"):
            yield (
                f"CREATE TRIGGER notice_{table}_{change} AFTER {change} ON {table}"
                f" BEGIN SELECT changed('{table}'); END"
            )


@cache
def _engine() -> Engine:
    """One engine for all plays of this process: to compile statements costs more than a play."""
    return create_engine("sqlite+pysqlite://", poolclass=StaticPool, isolation_level="AUTOCOMMIT")


def _connection() -> tuple[Connection, sqlite3.Connection]:
    """A connection a play: statements that were prepared over another file may crash SQLite."""
    _engine().dispose()
    connection = _engine().connect()
    raw = connection.connection.dbapi_connection
    assert isinstance(raw, sqlite3.Connection)
    return connection, raw


class Trouble:
    """How likely calls of the store fail; a play turns it up and down."""

    def __init__(self) -> None:
        self.before = 0.0
        self.after = 0.0
        self.away_until = 0.0


class Database:
    """What all processes of a play share."""

    def __init__(
        self, now: Callable[[], float], chance: Random, triggers: tuple[str, ...] = ()
    ) -> None:
        self.connection, self._raw = _connection()
        self._raw.deserialize(_template(triggers))
        self.skew = 0
        self._now = now
        self.chance = chance
        self.trouble = Trouble()
        self.on_commit: list[Callable[[], None]] = []
        self.on_rollback: list[Callable[[], None]] = []
        self._memory: dict[Any, tuple[set[str], Any]] = {}
        self._changed: set[str] = set()
        self.define("changed", 1, self._changed.add)
        # The store asks SQLite for the time: it gets the play's.
        self._raw.create_function("julianday", 1, lambda _: self._julian_day())

    def define(self, name: str, arguments: int, function: Callable[..., Any]) -> None:
        """Let triggers call something."""
        self._raw.create_function(name, arguments, function)

    def _julian_day(self) -> float:
        return (self._now() + self.skew) / _DAY + _EPOCH_DAY

    def is_away(self) -> bool:
        return self._now() < self.trouble.away_until

    def transact(self, closure: Callable[[Connection], T]) -> T:
        """Run a closure; all of it or nothing."""
        self._raw.execute("BEGIN")
        try:
            result = closure(self.connection)
        except BaseException:
            self.roll_back()
            raise
        self._raw.execute("COMMIT")
        if self._changed:
            self._memory = {
                key: known for key, known in self._memory.items() if not known[0] & self._changed
            }
            self._changed.clear()
        for hook in self.on_commit:
            hook()
        return result

    def roll_back(self) -> None:
        self._raw.execute("ROLLBACK")
        for hook in self.on_rollback:
            hook()

    def remember(self, key: Any, tables: set[str], look: Callable[[], T]) -> T:
        """Look something up, unless it was looked up since its tables last changed."""
        if key not in self._memory:
            self._memory[key] = (tables, look())
        found: T = self._memory[key][1]
        return found

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """Look without anybody's help, for those who check."""
        return self._raw.execute(sql, values).fetchall()


class _Undone(Exception):
    """The transaction is lost on its way to the disk."""


class PlayedWriter(Writer):
    """Runs closures one by one, for one process."""

    def __init__(self, database: Database, process: Process | None) -> None:
        self._database = database
        self._process = process

    def write(self, closure: Callable[[Connection], T]) -> T:
        if self._process is None:
            return self._database.transact(closure)
        return self._played(self._process, closure)

    def _played(self, process: Process, closure: Callable[[Connection], T]) -> T:
        database, chance = self._database, self._database.chance
        process.pass_by()
        _require_there(database, process)
        if chance.random() < database.trouble.before:
            raise self._lost(closure)
        result = database.transact(closure)
        process.pass_by()
        if chance.random() < database.trouble.after:
            raise StoreAway("the store's answer was lost")
        return result

    def _lost(self, closure: Callable[[Connection], T]) -> StoreAway:
        """Do it all, and then undo it."""

        def undone(connection: Connection) -> None:
            closure(connection)
            raise _Undone

        with suppress(_Undone):
            self._database.transact(undone)
        return StoreAway("the store went away")

    def submit(self, closure: Callable[[Connection], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(self.write(closure))
        except Exception as error:  # noqa: BLE001  (it belongs to whoever waits)
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class PlayedReader(Reader):
    """Reads for one process."""

    def __init__(self, database: Database, process: Process | None = None) -> None:
        self._database = database
        self._process = process

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._process is not None:
            self._process.pass_by()
            _require_there(self._database, self._process)
        yield self._database.connection

    def close(self) -> None:
        pass


SLOWEST = 5_000
"""Milliseconds that a call of the store may hang."""


def _require_there(database: Database, process: Process) -> None:
    if process.slow and database.chance.random() < process.slow:
        process.wait(database.chance.random() * SLOWEST)
    if database.is_away():
        process.wait(20)
        raise StoreAway("the store is away")


def calm_store(database: Database, kinds: Mapping[Kind, ReadDefinition]) -> SqlStore:
    """Give a store that never fails and takes no time, for people and for checks."""
    backend = cast(Backend, _NoBackend())
    return store_over(backend, PlayedReader(database), PlayedWriter(database, None), kinds)


def played_store(
    database: Database, calm: SqlStore, process: Process, kinds: Mapping[Kind, ReadDefinition]
) -> SqlStore:
    """Give a process its store: what it writes goes its own way, what it reads is read once."""
    backend, reader = cast(Backend, _NoBackend()), PlayedReader(database, process)
    store = store_over(backend, reader, PlayedWriter(database, process), kinds)
    nouns = {
        noun: Remembered(getattr(store, noun), getattr(calm, noun), tables, database, process)
        for noun, tables in _READ_FROM.items()
    }
    return replace(store, **cast(dict[str, Any], nouns))


_READ_FROM = {
    "definitions": {"lineage", "lineage_history"},
    "offsets": {"offsets"},
    "executions": {"etl_executions"},
    "failures": {"failed_rows"},
    "instances": {"etl_instances"},
    "controls": {"flow_controls"},
}
"""The nouns that services read again and again, and the tables that they read."""
_READS = {"current", "stamp", "stamps", "all", "get", "open", "some", "list", "counts", "waiting"}


class Remembered:
    """A noun whose reads are answered from memory while nobody has changed its tables.

    It saves time and changes nothing: an answer is given as if it had been looked up.
    """

    def __init__(
        self, noun: Any, calm: Any, tables: set[str], database: Database, process: Process
    ) -> None:
        self._noun = noun
        self._calm = calm
        self._tables = tables
        self._database = database
        self._process = process

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            return getattr(self._noun, name)

        def read(*given: Any, **named: Any) -> Any:
            self._process.pass_by()
            _require_there(self._database, self._process)
            return self._database.remember(
                (type(self._noun), name, repr(given), repr(named)),
                self._tables,
                lambda: getattr(self._calm, name)(*given, **named),
            )

        self.__dict__[name] = read
        return read


class _NoBackend:
    """The part of a backend that a store looks at when nothing is opened."""

    listening = None
