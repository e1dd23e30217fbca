"""The writer when SQLite itself is in trouble: full, busy, or failing at the commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.engine import ExceptionContext

from tests.projects import store_at
from tidegate.errors import StoreError
from tidegate.model.execution import ExecutionState
from tidegate.store import SqlStore
from tidegate.store.backends import SqliteBackend
from tidegate.store.writer import Writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    """A file whose users give up waiting for locks almost at once."""
    made = SqliteBackend.at(make_url(f"sqlite:///{path}"), None, busy_seconds=0.01)
    yield made
    made.engine.dispose()


@pytest.fixture
def writer(backend: SqliteBackend) -> Iterator[Writer]:
    """A writer over a table of notes."""
    with closing(Writer(backend)) as made:
        made.write(_run("CREATE TABLE notes (text TEXT)"))
        yield made


def _run(sql: str) -> Any:
    def closure(connection: Connection) -> None:
        connection.execute(text(sql))

    return closure


def _notes(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY text")]


def _add(note: str) -> Any:
    return _run(f"INSERT INTO notes VALUES ('{note}')")


def test_no_thread_runs_before_the_first_write(backend: SqliteBackend) -> None:
    before = threading.active_count()
    writer = Writer(backend)
    assert threading.active_count() == before
    writer.write(_run("SELECT 1"))
    assert threading.active_count() == before + 1
    writer.close()
    assert threading.active_count() == before


def test_a_full_disk_is_said_and_the_writer_goes_on(writer: Writer, path: Path) -> None:
    def fill(connection: Connection) -> None:
        connection.execute(text("PRAGMA max_page_count = 10"))
        try:
            connection.execute(text("INSERT INTO notes VALUES (zeroblob(1000000))"))
        finally:
            connection.execute(text("PRAGMA max_page_count = 1000000"))

    with pytest.raises(StoreError, match=r"notes\.db cannot grow because the disk is full; free"):
        writer.write(fill)
    writer.write(_add("after"))
    assert _notes(path) == ["after"]


def test_a_file_that_may_not_be_written_is_named(writer: Writer) -> None:
    def write(connection: Connection) -> None:
        connection.execute(text("PRAGMA query_only = ON"))
        connection.execute(text("INSERT INTO notes VALUES ('x')"))

    with pytest.raises(StoreError, match=r"notes\.db may not be written; check the rights"):
        writer.write(write)


def test_a_commit_held_up_by_a_reader_is_repeated_and_the_closure_is_not(
    backend: SqliteBackend, writer: Writer, path: Path
) -> None:
    runs: list[str] = []
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM notes").fetchall()

    def let_go(context: ExceptionContext) -> None:
        assert context.statement == "COMMIT"
        reader.execute("ROLLBACK")

    def write(connection: Connection) -> None:
        runs.append("once")
        _add("kept")(connection)

    event.listen(backend.engine, "handle_error", let_go)
    writer.write(write)
    reader.close()
    assert runs == ["once"]
    assert _notes(path) == ["kept"]


def test_a_reader_that_never_lets_go_fails_the_write_in_words(writer: Writer, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM notes").fetchall()
        with pytest.raises(StoreError, match="is locked by another program; close whatever"):
            writer.write(_add("lost"))
    writer.write(_add("after"))
    assert _notes(path) == ["after"]


def test_when_the_commit_fails_all_who_wait_are_told(writer: Writer, path: Path) -> None:
    writer.write(_run("CREATE TABLE pages (id INTEGER PRIMARY KEY)"))
    rule = "page INTEGER REFERENCES pages (id) DEFERRABLE INITIALLY DEFERRED"
    writer.write(_run(f"CREATE TABLE lines ({rule})"))

    def refuse(_connection: Connection) -> None:
        raise KeyError("judged by what is about to be lost")

    busy, all_queued = threading.Event(), threading.Event()

    def gate(_connection: Connection) -> None:
        busy.set()
        all_queued.wait()

    writer.submit(gate)
    busy.wait()
    closures = (_add("one"), _run("INSERT INTO lines VALUES (99)"), refuse, _add("two"))
    futures = [writer.submit(closure) for closure in closures]
    all_queued.set()
    for future in futures:
        with pytest.raises(StoreError, match="FOREIGN KEY"):
            future.result()
    writer.write(_add("after"))
    assert _notes(path) == ["after"]


def test_a_waiter_cannot_withdraw_and_so_break_the_thread(writer: Writer, path: Path) -> None:
    assert not writer.submit(_add("kept")).cancel()
    writer.write(_add("next"))
    assert _notes(path) == ["kept", "next"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(store_at(tmp_path / "store.db")) as opened:
        yield opened


def test_past_executions_cost_nothing_when_the_open_ones_are_asked_for(store: SqlStore) -> None:
    plans: list[str] = []

    def explain(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT etl_executions"):
            steps = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            plans.append(" ".join(step[-1] for step in steps))

    event.listen(store.backend.engine, "before_cursor_execute", explain)
    store.executions.list(state=ExecutionState.RUNNING)
    store.executions.list(flow="fact.orders")
    assert "USING INDEX etl_executions_open" in plans[0]
    assert "USING INDEX etl_executions_flow" in plans[1]


@pytest.mark.parametrize(
    ("pragma", "value"), [("journal_mode", "truncate"), ("synchronous", 2), ("foreign_keys", 1)]
)
def test_sqlite_is_set_to_survive_a_power_cut(store: SqlStore, pragma: str, value: object) -> None:
    def read(connection: Connection) -> object:
        return connection.execute(text(f"PRAGMA {pragma}")).scalar()

    assert store.writer.write(read) == value
