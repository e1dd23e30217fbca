"""The writer over real databases: what is committed together, alone, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text, update

from tidegate.errors import ClaimLost, StoreAway, StoreError
from tidegate.model.position import Offset, Position
from tidegate.store import SqlStore, open_store
from tidegate.store.positions import enter
from tidegate.store.schema import offsets

from .conftest import Open, Postgres
from .scenes import KINDS, NOW, claimed

Closure = Callable[[Connection], Any]


def entering(topic: str) -> Closure:
    return lambda connection: enter(connection, topic, topic, NOW)


def together(store: SqlStore, *closures: Closure) -> list[Future[Any]]:
    """Queue closures while the writer is busy with another batch, so that they share the next."""
    busy, all_queued = threading.Event(), threading.Event()

    def gate(_connection: Connection) -> None:
        busy.set()
        all_queued.wait()

    store.writer.submit(gate)
    busy.wait()
    futures = [store.writer.submit(closure) for closure in closures]
    all_queued.set()
    return futures


@contextmanager
def statements(store: SqlStore) -> Iterator[list[str]]:
    """Listen to what is said to the database."""
    said: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        said.append(statement)

    event.listen(store.backend.engine, "before_cursor_execute", hear)
    yield said
    event.remove(store.backend.engine, "before_cursor_execute", hear)


def test_closures_that_wait_are_committed_together(store: SqlStore) -> None:
    with statements(store) as said:
        futures = together(store, *(entering(f"fact.t{n}") for n in range(20)))
        for future in futures:
            future.result()
    gate_and_batch = 2
    assert said.count("COMMIT") == gate_and_batch
    assert len(store.offsets.all()) == 20


def test_a_closure_that_raises_does_not_spoil_the_others(store: SqlStore) -> None:
    def half_done(connection: Connection) -> None:
        enter(connection, "fact.half", "fact.half", NOW)
        raise ClaimLost("changed my mind")

    def wrong_sql(connection: Connection) -> None:
        enter(connection, "fact.wrong", "fact.wrong", NOW)
        connection.execute(text("SELECT nonsense FROM nowhere"))

    before, half, wrong, after = together(
        store, entering("fact.a"), half_done, wrong_sql, entering("fact.b")
    )
    assert before.result() is None
    assert after.result() is None
    with pytest.raises(ClaimLost, match="changed my mind"):
        half.result()
    with pytest.raises(StoreError, match="refused a statement"):
        wrong.result()
    assert list(store.offsets.all()) == ["fact.a", "fact.b"]


def test_a_closure_sees_what_those_before_it_wrote(store: SqlStore) -> None:
    def count(connection: Connection) -> int:
        return len(connection.execute(text("SELECT topic FROM offsets")).all())

    first, _, second = together(store, count, entering("fact.a"), count)
    assert (first.result(), second.result()) == (0, 1)


def test_a_result_is_given_once_it_is_durable(store: SqlStore, url: str, opened: Open) -> None:
    reader = opened(url)
    store.writer.write(entering("fact.a"))
    assert reader.offsets.get("fact.a") is not None


def test_nobody_reads_what_is_not_committed(store: SqlStore, url: str, opened: Open) -> None:
    reader = opened(url)
    wrote, looked = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        enter(connection, "fact.a", "fact.a", NOW)
        wrote.set()
        looked.wait()

    future = store.writer.submit(write)
    wrote.wait()
    seen = (reader.offsets.get("fact.a"), store.offsets.get("fact.a"))
    looked.set()
    future.result()
    assert seen == (None, None)
    assert reader.offsets.get("fact.a") is not None


def test_closing_writes_what_waits(url: str, opened: Open) -> None:
    leaving = open_store(url, KINDS)
    futures = together(leaving, entering("fact.a"), entering("fact.b"))
    leaving.close()
    assert all(future.done() for future in futures)
    assert list(opened(url).offsets.all()) == ["fact.a", "fact.b"]


def test_a_store_is_closed_as_often_as_one_likes(url: str) -> None:
    store = open_store(url, KINDS)
    store.close()
    store.close()
    written = open_store(url, KINDS)
    written.writer.write(entering("fact.a"))
    written.close()
    written.close()


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url, KINDS)
    store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        store.blocks.unlock("fact.a", NOW)
    with pytest.raises(StoreError, match="the store is closed"):
        store.offsets.all()


def test_threads_may_share_a_store(store: SqlStore) -> None:
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            claimed(store, f"e{number}", topic=f"fact.t{number}")
            assert store.offsets.get(f"fact.t{number}") is not None
            store.blocks.unlock(f"fact.t{number}", NOW)
        except (StoreError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.offsets.all()) == 20


def _cut_own_connection(connection: Connection) -> None:
    connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def test_a_lost_connection_fails_those_who_wait_and_is_made_anew(
    postgres_url: str, opened: Open
) -> None:
    store = opened(postgres_url)
    before, cut, after = together(
        store, entering("fact.a"), _cut_own_connection, entering("fact.b")
    )
    for future in (before, cut, after):
        with pytest.raises(StoreError, match=r"cut the connection|cannot be reached"):
            future.result()
    assert store.offsets.all() == {}
    store.writer.write(entering("fact.c"))
    assert list(store.offsets.all()) == ["fact.c"]


def test_a_connection_cut_while_nobody_writes_is_made_anew(
    postgres: Postgres, postgres_url: str, opened: Open
) -> None:
    store = opened(postgres_url)
    store.writer.write(entering("fact.a"))
    assert len(store.offsets.all()) == 1
    postgres.cut_connections()
    store.writer.write(entering("fact.b"))
    assert len(store.offsets.all()) == 2
    postgres.cut_connections()
    assert len(store.offsets.all()) == 2


def test_a_server_without_room_may_have_some_in_a_moment(postgres_url: str, opened: Open) -> None:
    store = opened(postgres_url)
    full = "DO $$ BEGIN RAISE disk_full; END $$"
    with pytest.raises(StoreAway, match="disk is full"):
        store.writer.write(lambda connection: connection.exec_driver_sql(full))


def test_closures_of_two_processes_that_lock_in_other_orders_all_get_through(
    postgres_url: str, opened: Open
) -> None:
    stores = [opened(postgres_url) for _ in range(2)]
    for topic in ("fact.a", "fact.b"):
        stores[0].offsets.put(Offset(topic, Position(0, 0)), NOW)
    both_hold_one, met = threading.Barrier(2), threading.Event()

    def adding(topic: str) -> Closure:
        row = update(offsets).where(offsets.c.topic == topic)
        return lambda connection: connection.execute(row.values(rows=offsets.c.rows + 1))

    def first(topic: str) -> Closure:
        def run(connection: Connection) -> None:
            adding(topic)(connection)
            # Once: of the batch that gives way, each is run again.
            if not met.is_set():
                both_hold_one.wait()
                met.set()

        return run

    futures = [
        *together(stores[0], first("fact.a"), adding("fact.b")),
        *together(stores[1], first("fact.b"), adding("fact.a")),
    ]
    for future in futures:
        future.result(timeout=30)
    assert [row.rows for row in stores[0].offsets.all().values()] == [2, 2]


def test_a_row_that_breaks_a_rule_of_the_schema_is_refused_in_words(store: SqlStore) -> None:
    nameless = insert(offsets).values(topic="fact.a")
    with pytest.raises(StoreError, match="refused a statement") as refused:
        store.writer.write(lambda connection: connection.execute(nameless))
    assert "\n" not in str(refused.value)
