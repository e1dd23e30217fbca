"""One writer, one reader, one way to say SQL.

    others ──closures──▶ Writer ──one transaction for all that wait──▶ database
    others ◀──rows────── Reader ◀──one statement, fetched at once───── database

A `Statement` is compiled once and then run by the driver. SQLAlchemy writes the SQL and knows the
types; what it does beside that at every execution takes ten times as long as SQLite needs for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Delete, Dialect, Executable, Insert, RowMapping, Select, Update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from tidegate.errors import StoreError
from tidegate.store.backends import CLOCK, Backend

Row = dict[str, Any]
Sql = Select[Any] | Insert | Update | Delete | ReturningInsert[Any] | ReturningUpdate[Any]
_Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class _Compiled:
    """The SQL for one dialect and one set of names, and what becomes of the values.

    Values are picked and named by calls that go over all of them at once: a row of `offsets` has
    thirty columns, and nearly none needs to be converted.
    """

    text: str
    positional: bool
    names: Sequence[str]
    """Of the values, in their order."""
    fixed: Mapping[str, Any]
    """Those of them that the statement itself gives."""
    taken: Sequence[tuple[str, _Convert]]
    """How the driver takes a value, where it is not as it is."""
    columns: Sequence[str]
    given: Sequence[tuple[str, _Convert]]
    """How a column is read, where it is not as it is."""

    def bind(self, values: Mapping[str, Any]) -> Any:
        bound = {**self.fixed, **values}
        for name, convert in self.taken:
            bound[name] = convert(bound[name])
        if self.positional:
            return list(map(bound.__getitem__, self.names))
        return bound

    def row(self, found: Sequence[Any]) -> Row:
        row = dict(zip(self.columns, found, strict=True))
        for name, convert in self.given:
            row[name] = convert(row[name])
        return row


class Statement:
    """One statement. What an INSERT or UPDATE sets may be named when it is run."""

    def __init__(self, build: Callable[[str], Sql] | Sql) -> None:
        self._build = build
        """The statement, or what makes it for a dialect that says things differently."""
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any] | None = None) -> list[Row]:
        compiled, found = self._fetch(connection, values or {})
        return [compiled.row(one) for one in found]

    def first(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Row | None:
        """Give the only row, or None."""
        compiled, found = self._fetch(connection, values or {})
        return compiled.row(found[0]) if found else None

    def scalar(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """Give the only value of the only row, or None."""
        row = self.first(connection, values)
        return None if row is None else next(iter(row.values()))

    def run(self, connection: Connection, values: Mapping[str, Any] | None = None) -> None:
        compiled = self._for(connection.dialect, values or {})
        _run(connection, compiled.text, compiled.bind(values or {}))

    def run_many(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for many, which all name the same."""
        if rows:
            compiled = self._for(connection.dialect, rows[0])
            _run(connection, compiled.text, [compiled.bind(row) for row in rows], many=True)

    def _fetch(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> tuple[_Compiled, Sequence[Sequence[Any]]]:
        compiled = self._for(connection.dialect, values)
        return compiled, _run(connection, compiled.text, compiled.bind(values), fetch=True)

    def _for(self, dialect: Dialect, values: Mapping[str, Any]) -> _Compiled:
        key = (dialect.name, *values)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(dialect, values)
        return found

    def _compile(self, dialect: Dialect, values: Mapping[str, Any]) -> _Compiled:
        statement = self._build(dialect.name) if callable(self._build) else self._build
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(values))
        kinds = {name: bind.type for bind, name in compiled.bind_names.items()}
        names = compiled.positiontup if compiled.positional else list(compiled.params)
        returned = getattr(statement, "exported_columns", ())
        results = {
            one.key: one.type.dialect_impl(dialect).result_processor(dialect, None)
            for one in returned
        }
        binds = {name: kinds[name].dialect_impl(dialect).bind_processor(dialect) for name in names}
        return _Compiled(
            compiled.string,
            bool(compiled.positional),
            names,
            {name: compiled.params[name] for name in names if name not in values},
            _converted(binds),
            list(results),
            _converted(results),
        )


def _converted(known: Mapping[str, _Convert | None]) -> Sequence[tuple[str, _Convert]]:
    return [(name, convert) for name, convert in known.items() if convert is not None]


def say(connection: Connection, text: str) -> None:
    """Run SQL that has no values and gives no rows."""
    _run(connection, text, ())


def ask(connection: Connection, text: str) -> Any:
    """Run SQL that has no values, and give the only one that it gives."""
    return _run(connection, text, (), fetch=True)[0][0]


def clock(connection: Connection) -> int:
    """Give the store's own time in milliseconds: one clock for all who share the store."""
    now: int = ask(connection, f"SELECT {CLOCK[connection.dialect.name]}")
    return now


def _run(
    connection: Connection, text: str, bound: Any, *, fetch: bool = False, many: bool = False
) -> Sequence[Sequence[Any]]:
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    try:
        if many:
            cursor.executemany(text, bound)
        else:
            cursor.execute(text, bound)
        return cursor.fetchall() if fetch else ()
    except connection.dialect.loaded_dbapi.Error as error:
        dialect = connection.dialect
        gone = dialect.is_disconnect(error, driver, cursor)
        kind = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(
            text, None, error, kind, hide_parameters=True, connection_invalidated=gone
        ) from error
    finally:
        cursor.close()


Values = Mapping[str, Any] | None
"""What a statement that was built once is asked with."""


class Reader:
    """The connection beside the writer's."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = threading.Event()

    def rows(self, statement: Executable, values: Values = None) -> Sequence[RowMapping]:
        with self._connected() as connection:
            return connection.execute(statement, values).mappings().all()

    def plain(self, statement: Executable, values: Values = None) -> Sequence[tuple[Any, ...]]:
        """Give rows as the driver has them, where there are so many that more would cost."""
        with self._connected() as connection, connection.execute(statement, values) as result:
            return result.cursor.fetchall() if result.cursor else []

    def first(self, statement: Executable, values: Values = None) -> RowMapping | None:
        """Give the only row, or None."""
        return next(iter(self.rows(statement, values)), None)

    def rows_of(self, statement: Statement, values: Values = None) -> list[Row]:
        """Give the rows of what is asked many times a second."""
        with self._connected() as connection:
            return statement.rows(connection, values)

    def first_of(self, statement: Statement, values: Values = None) -> Row | None:
        """Give the only row of such a statement, or None."""
        with self._connected() as connection:
            return statement.first(connection, values)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._closed.is_set():
            raise StoreError("the store is closed; open it again to read from it")
        try:
            with self._backend.engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._backend.explain(error) from None

    def close(self) -> None:
        self._closed.set()
        self._backend.engine.dispose()


T = TypeVar("T")
_Answer = Callable[[], None]
"""Tells a waiter what became of its closure."""


class _Reply:
    """What somebody who does nothing else meanwhile waits for: a lock, where a Future has four."""

    def __init__(self) -> None:
        self._told = threading.Lock()
        self._told.acquire()
        self._result: Any = None
        self._error: BaseException | None = None

    def set_result(self, result: Any) -> None:
        self._result = result
        self._told.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._told.release()

    def result(self) -> Any:
        self._told.acquire()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            # Else the error and this frame would hold each other until circles are looked for.
            del self


class _Job(NamedTuple):
    closure: Callable[[Connection], Any]
    reply: _Reply | Future[Any]


class Writer:
    """Runs closures for others and wakes them when what they wrote is durable.

    A closure sees what those before it in the same transaction wrote, must not write anywhere
    but through its connection, and must not call the writer itself. It may be run twice: when one
    of a batch fails, all of the batch is undone, and each is run for itself.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._connection: Connection | None = None
        self._waiting: list[_Job] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def write(self, closure: Callable[[Connection], T]) -> T:
        """Run a closure in a transaction and give its result once that is committed."""
        reply = _Reply()
        self._hand_over(_Job(closure, reply))
        result: T = reply.result()
        return result

    def submit(self, closure: Callable[[Connection], T]) -> Future[T]:
        """Hand a closure over without waiting for it."""
        future: Future[T] = Future()
        # From here on it can no longer be cancelled, so the thread may always answer.
        future.set_running_or_notify_cancel()
        self._hand_over(_Job(closure, future))
        return future

    def _hand_over(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise StoreError("the store is closed; open it again to write to it")
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="store", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Write what still waits, then end the thread and its connection."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        again: list[_Job] = []
        while again or self._has_work():
            again = self._run(again)
        self._disconnect()

    def _has_work(self) -> bool:
        """Wait for something to write; tell whether there is some, or all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return bool(self._waiting)

    def _run(self, again: Sequence[_Job]) -> list[_Job]:
        """Commit a batch, wake its waiters, and give back the jobs that have to run again."""
        batch = list(again)
        try:
            with self._backend.alone():
                # Only now: whatever came while another process wrote goes along.
                batch += self._take()
                answers, left = self._transact(batch)
        except Exception as error:  # noqa: BLE001 - a waiter that heard nothing would wait for ever
            # All of them, also those whose closure had raised: it may have judged by what
            # another closure of the batch had written, and that is gone now.
            for job in batch or self._take():
                job.reply.set_exception(self._backend.explain(error))
            return []
        for answer in answers:
            answer()
        return left

    def _take(self) -> list[_Job]:
        with self._changed:
            taken, self._waiting = self._waiting, []
        return taken

    def _transact(self, batch: Sequence[_Job]) -> tuple[list[_Answer], list[_Job]]:
        try:
            connection = self._begin()
            answers = self._attempt_all(connection, batch)
            each = zip(batch, answers, strict=True)
            again = [job for job, answer in each if answer is None]
            self._backend.commit(connection)
        except BaseException:
            # Before the next process is let in: what was begun must be gone by then.
            self._disconnect()
            raise
        return [answer for answer in answers if answer is not None], again

    def _attempt_all(self, connection: Connection, batch: Sequence[_Job]) -> list[_Answer | None]:
        """Run closures behind one savepoint; when one of them fails, each behind its own."""
        say(connection, "SAVEPOINT closure")
        try:
            answers = [partial(job.reply.set_result, job.closure(connection)) for job in batch]
        except Exception as error:  # noqa: BLE001 - it belongs to a waiter, not to this thread
            self._undo(connection, error)
            return [self._attempt(connection, job) for job in batch]
        say(connection, "RELEASE SAVEPOINT closure")
        return list(answers)

    def _attempt(self, connection: Connection, job: _Job) -> _Answer | None:
        """Run one closure in its savepoint; give what its waiter will be told, None for later."""
        say(connection, "SAVEPOINT closure")
        try:
            result = job.closure(connection)
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter, not to this thread
            # Raises when the whole transaction is lost, as after a full disk or a cut connection.
            self._undo(connection, error)
            if self._backend.should_run_again(error):
                return None
            failure = self._backend.explain(error) if isinstance(error, DBAPIError) else error
            return partial(job.reply.set_exception, failure)
        say(connection, "RELEASE SAVEPOINT closure")
        return partial(job.reply.set_result, result)

    def _undo(self, connection: Connection, error: Exception) -> None:
        try:
            say(connection, "ROLLBACK TO SAVEPOINT closure")
            say(connection, "RELEASE SAVEPOINT closure")
        except SQLAlchemyError as lost:
            # What ended the transaction says more than that there is no savepoint any more.
            raise (error if isinstance(error, DBAPIError) else lost) from None

    def _begin(self) -> Connection:
        if self._connection is not None:
            try:
                self._connection.exec_driver_sql(self._backend.begin)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # It was cut while nobody wrote, so nothing is lost by taking a new one.
                self._disconnect()
            else:
                return self._connection
        self._connection = self._backend.engine.connect()
        self._connection.exec_driver_sql(self._backend.begin)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
