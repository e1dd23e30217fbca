"""The bus on the store's table: what it costs when idle, what it leaves, who is rung for."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import event, select

from tidegate.bus.embedded import (
    DELETE_SECONDS,
    RETENTION,
    Audience,
    EmbeddedBus,
    WakeSocket,
    WakeSockets,
)
from tidegate.errors import BusError
from tidegate.model.messages import Channel
from tidegate.ports.store import OutgoingMessage
from tidegate.store import SqlStore
from tidegate.store.messages import MOST_IN_A_ROW
from tidegate.store.schema import messages

from .conftest import Open, Postgres
from .places import Place, assign, heartbeat, line_of, read, sqlite_outage, take, uuid

CLOCK = 1_700_000_000_000
Opened = Callable[[SqlStore], EmbeddedBus]


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for sockets."""
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def bus_on(url: str) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda store: stack.enter_context(
            closing(EmbeddedBus(store.messages, url, lambda: CLOCK))
        )


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/*/*") if path.is_socket()]


def written(store: SqlStore) -> None:
    """Wait until all that was handed over is written: this comes behind it."""
    store.writer.write(lambda _connection: None)


def test_an_idle_wait_costs_one_read_a_second(store: SqlStore, bus_on: Opened) -> None:
    inbox = bus_on(store).manager_inbox()
    # Where the database notifies, the listener rings once when it has begun to listen.
    inbox.receive(0.5)
    reads: list[object] = []

    def read(connection: object, *_rest: object) -> None:
        reads.append(connection)

    event.listen(store.backend.engine, "checkout", read)
    inbox.receive(2.5)
    assert 3 <= len(reads) <= 4


def test_what_is_deleted_is_forgotten(store: SqlStore, bus_on: Opened) -> None:
    bus = bus_on(store)
    inbox = bus.manager_inbox()
    bus.publish([heartbeat(number) for number in range(10)])
    taken = take(inbox, 10)
    assert inbox._given.total() == len(taken)
    inbox.done(taken)
    # Not at once, but with others that are done soon after.
    assert inbox.receive(2 * DELETE_SECONDS) == []
    assert inbox.receive(0.0) == []
    written(store)
    assert inbox.receive(0.0) == []
    assert not inbox._given


def test_all_that_is_published_in_a_rush_is_sent_in_order(store: SqlStore, url: str) -> None:
    with closing(EmbeddedBus(store.messages, url, lambda: CLOCK)) as bus:
        for number in range(300):
            bus.publish([heartbeat(number)])
    with closing(EmbeddedBus(store.messages, url, lambda: CLOCK)) as bus:
        assert read(take(bus.manager_inbox(), 300)) == [heartbeat(n) for n in range(300)]


def test_what_is_sent_together_shares_a_row_and_commands_do_not(store: SqlStore) -> None:
    told = [
        OutgoingMessage(Channel.PROGRESS, "a", b"%d" % number)
        for number in range(MOST_IN_A_ROW + 1)
    ]
    # Whatever it is, it comes as it was sent, and in its place.
    odd = [
        OutgoingMessage(Channel.PROGRESS, "b", body)
        for body in (b"", b"two\nlines", b"\n", b"last")
    ]
    commands = [OutgoingMessage(Channel.CONTROL, key, b"c") for key in ("a", "a", "b")]
    store.messages.put([*told, *odd, *commands], CLOCK).result()
    taken = store.messages.take([Channel.PROGRESS], None, 1000)
    assert [one.body for one in taken] == [message.body for message in (*told, *odd)]
    assert len({one.where for one in taken}) == len(taken)
    assert len(store.messages.take([Channel.CONTROL], ["a"], 1000)) == 2
    rows = store.reader.rows(select(messages))
    full, begun, two_lines, line, last = (row for row in rows if row["topic"] == Channel.PROGRESS)
    assert (full["several"], begun["several"]) == (MOST_IN_A_ROW, 2)
    assert {row["several"] for row in (two_lines, line, last)} == {1}


def test_what_is_done_is_deleted(store: SqlStore, bus_on: Opened) -> None:
    bus = bus_on(store)
    with closing(bus.manager_inbox()) as manager, closing(bus.worker_inbox([uuid(1)])) as worker:
        bus.publish([heartbeat(1), assign(1)])
        for inbox in (manager, worker):
            inbox.done(take(inbox, 1))
    assert store.reader.rows(select(messages)) == []


def test_old_messages_are_dropped_by_hand_and_by_publishing(store: SqlStore, url: str) -> None:
    now = [CLOCK]
    with closing(EmbeddedBus(store.messages, url, lambda: now[0])) as bus:
        bus.publish([heartbeat(1)])
        now[0] += RETENTION // 2
        bus.publish([heartbeat(2)])
        bus.trim(CLOCK + 1)
        written(store)
        assert read(take(bus.manager_inbox(), 1)) == [heartbeat(2)]
        now[0] += RETENTION + 1
        bus.publish([heartbeat(3)])
        written(store)
        assert read(take(bus.manager_inbox(), 1)) == [heartbeat(3)]


def test_a_notice_is_heard_again_after_the_connection_was_cut(
    postgres: Postgres, postgres_url: str, opened: Open
) -> None:
    here, there = opened(postgres_url), opened(postgres_url)
    with (
        closing(EmbeddedBus(here.messages, "here", lambda: CLOCK)) as bus,
        # Another machine: it shares no sockets.
        closing(EmbeddedBus(there.messages, "there", lambda: CLOCK)) as other,
    ):
        inbox = bus.manager_inbox()
        postgres.cut_connections()
        delays: list[float] = []
        while not delays or delays[-1] > 0.3:
            assert len(delays) < 10, f"no notice is heard any more: {delays}"
            sent: list[float] = []

            def publish(sent: list[float] = sent) -> None:
                sent.append(time.monotonic())
                other.publish([heartbeat(1)])

            # When the inbox has looked, and waits.
            timer = threading.Timer(0.3, publish)
            timer.start()
            taken = inbox.receive(20.0)
            timer.join()
            delays.append(time.monotonic() - sent[0])
            inbox.done(taken)


def test_a_dead_process_is_no_longer_rung_for(
    sqlite_url: str, tmp_path: Path, runtime_dir: Path
) -> None:
    (tmp_path / "tidegate.toml").write_text(f'[store]\nurl = "{sqlite_url}"')
    place = Place(tmp_path, sqlite_outage(sqlite_url))
    script = "inbox = bus.manager_inbox(); print('bound', flush=True); sys.stdin.readline()"
    with place.stack:
        bus = place.open()
        with place.process(script) as child:
            assert line_of(child) == "bound"
            assert len(sockets(runtime_dir)) == 1
        inbox = bus.manager_inbox()
        assert len(sockets(runtime_dir)) == 2
        bus.wake()
        assert len(sockets(runtime_dir)) == 1
        assert inbox.receive(20.0) == []
    assert sockets(runtime_dir) == []


WAITER = """
inbox = bus.worker_inbox(["00000000-0000-4000-8000-000000000001"])
print("waits", flush=True)
inbox.receive(60.0)
print("woken", flush=True)
"""


def test_a_wake_reaches_other_processes_of_the_machine(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(f'[store]\nurl = "{sqlite_url}"')
    place = Place(tmp_path, sqlite_outage(sqlite_url))
    with place.stack, place.process(WAITER) as child:
        assert line_of(child) == "waits"
        began = time.monotonic()
        place.open().wake()
        assert line_of(child) == "woken"
        assert time.monotonic() - began < 5


def test_stores_do_not_ring_for_each_other(store: SqlStore) -> None:
    with (
        closing(EmbeddedBus(store.messages, "one", lambda: CLOCK)) as one,
        closing(EmbeddedBus(store.messages, "other", lambda: CLOCK)) as other,
    ):
        inbox = one.manager_inbox()
        inbox.receive(0.3)
        other.wake()
        began = time.monotonic()
        inbox.receive(0.3)
        assert time.monotonic() - began >= 0.29


def test_a_ring_that_finds_a_full_socket_neither_waits_nor_fails(runtime_dir: Path) -> None:
    bell = WakeSockets("url")
    ear = bell.wake_socket(Audience.MANAGER)
    for _ in range(2000):
        bell.look({Audience.MANAGER})
    assert len(sockets(runtime_dir)) == 1
    assert ear.drain() is False
    ear.close()


def _is_rung(ear: WakeSocket) -> bool:
    began = time.monotonic()
    ear.wait(0.5)
    return time.monotonic() - began < 0.4


def test_only_those_are_rung_for_whom_it_concerns() -> None:
    bell = WakeSockets("url")
    with (
        closing(bell.wake_socket(Audience.MANAGER)) as manager,
        closing(bell.wake_socket(Audience.WORKERS)) as worker,
    ):
        bell.look({Audience.WORKERS})
        assert (_is_rung(manager), _is_rung(worker)) == (False, True)
        bell.wake()
        assert manager.drain()
        assert worker.drain()


def test_the_folder_is_the_users_alone(runtime_dir: Path) -> None:
    WakeSockets("url").wake_socket(Audience.WORKERS).close()
    (folder,) = runtime_dir.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(BusError, match="is not a folder of this user alone; remove it"):
        WakeSockets("url")
    folder.rename(runtime_dir / "elsewhere")
    folder.symlink_to(runtime_dir / "elsewhere")
    with pytest.raises(BusError, match="is not a folder of this user alone; remove it"):
        WakeSockets("url")


def test_a_path_too_long_for_sockets_gives_way_to_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    ear = WakeSockets(str(tmp_path)).wake_socket(Audience.MANAGER)
    assert list(long.iterdir()) == []
    ear.close()


def test_a_register_that_was_cleaned_away_is_no_error(runtime_dir: Path) -> None:
    bell = WakeSockets("url")
    ear = bell.wake_socket(Audience.MANAGER)
    for path in sockets(runtime_dir):
        path.unlink()
        path.parent.rmdir()
    bell.wake()
    ear.close()
    with pytest.raises(BusError, match="no socket can be made in"):
        bell.wake_socket(Audience.MANAGER)
