"""The one thread that writes: whatever waits when it is free becomes one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.errors import StoreError
from tidegate.store.backend import Backend
from tidegate.store.statement import say

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
