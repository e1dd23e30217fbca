"""What every bus promises, on SQLite, on PostgreSQL and on a real broker."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tidegate.model.messages import Channel
from tidegate.ports.outside import Inbox

from .places import (
    Place,
    assign,
    broker_outage,
    finished,
    heartbeat,
    line_of,
    postgres_outage,
    read,
    sqlite_outage,
    take,
    take_until,
    tell,
    uuid,
)

SOON = 0.3
"""Seconds, generously: it takes milliseconds. Whoever looks by the clock takes longer."""
AT_ONCE = 3.0
"""Seconds, where whoever waits in vain waits for twenty."""
prefixes = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path, sqlite_url: str) -> Iterator[Place]:
    url, bus, outage = sqlite_url, "", sqlite_outage(sqlite_url)
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        outage = postgres_outage(request.getfixturevalue("postgres"), url)
    if request.param == "kafka":
        broker = request.getfixturevalue("broker")
        bus = f'url = "kafka://{broker.servers}"\nprefix = "t{next(prefixes)}."'
        outage = broker_outage(broker)
    (tmp_path / "tidegate.toml").write_text(f'[store]\nurl = "{url}"\n[bus]\n{bus}\n')
    place = Place(tmp_path, outage)
    with place.stack:
        place.open().create_channels()
        yield place


def test_what_is_published_comes_in_order_and_only_once(place: Place) -> None:
    bus = place.open()
    inbox = bus.manager_inbox()
    beats = [heartbeat(number) for number in range(30)]
    ends = [finished(number) for number in range(30)]
    for beat, end in zip(beats, ends, strict=True):
        bus.publish([beat, end])
    taken = take(inbox, 60)
    assert [one for one in read(taken) if one in beats] == beats
    assert [one for one in read(taken) if one in ends] == ends
    assert {one.channel for one in taken} == {Channel.HEARTBEAT, Channel.PROGRESS}
    assert inbox.receive(0.0) == []
    inbox.done(taken)
    assert inbox.receive(1.2) == []


def test_messages_on_control_are_not_the_managers(place: Place) -> None:
    bus = place.open()
    inbox = bus.manager_inbox()
    bus.publish([assign(1), heartbeat(1)])
    assert read(take(inbox, 1)) == [heartbeat(1)]


def test_what_was_published_before_anybody_listened_is_kept(place: Place) -> None:
    place.open().publish([heartbeat(1)])
    assert read(take(place.open().manager_inbox(), 1)) == [heartbeat(1)]


def test_the_next_manager_goes_on_behind_what_is_done(place: Place) -> None:
    first, second = place.open(), place.open()
    inbox = first.manager_inbox()
    first.publish([finished(number) for number in range(6)])
    taken = take(inbox, 6)
    inbox.done(taken[:2])
    inbox.close()
    with closing(second.manager_inbox()) as next_inbox:
        taken = take(next_inbox, 4)
        # What was sent together with one that is not done may come again with it.
        assert read(taken)[-4:] == [finished(number) for number in range(2, 6)]
        next_inbox.done(taken)
    first.publish([finished(6)])
    assert read(take(first.manager_inbox(), 1)) == [finished(6)]


def test_what_is_done_out_of_order_loses_nothing(place: Place) -> None:
    bus = place.open()
    with closing(bus.manager_inbox()) as inbox:
        bus.publish([finished(number) for number in range(4)])
        taken = take(inbox, 4)
        inbox.done(taken[2:])
    again = take(place.open().manager_inbox(), 2)
    assert read(again)[:2] == [finished(0), finished(1)]


RECEIVER = """
inbox = bus.manager_inbox()
got = []
while len(got) < 3:
    got += inbox.receive(1.0)
inbox.done(got[:1])
print("has them", flush=True)
sys.stdin.readline()
"""


def test_what_a_killed_manager_had_not_done_comes_again(place: Place) -> None:
    bus = place.open()
    with place.process(RECEIVER) as child:
        bus.publish([finished(number) for number in range(3)])
        assert line_of(child) == "has them"
    # Whether the first had been written off is chance; the others must come, in order.
    assert take_until(place.open().manager_inbox(), finished(2))[-2:] == [finished(1), finished(2)]


def test_a_worker_gets_what_is_for_its_instances(place: Place) -> None:
    manager, one, other = place.open(), place.open(), place.open()
    inboxes = [one.worker_inbox([uuid(1), uuid(2)]), other.worker_inbox([uuid(3)])]
    manager.publish([assign(3, 10), assign(9, 11), assign(1, 12), assign(2, 13), assign(1, 14)])
    mine = take(inboxes[0], 3)
    assert read(mine) == [assign(1, 12), assign(2, 13), assign(1, 14)]
    assert read(take(inboxes[1], 1)) == [assign(3, 10)]
    inboxes[0].done(mine)
    assert inboxes[0].receive(1.2) == []


def _waits(inbox: Inbox) -> tuple[threading.Thread, list[float]]:
    """Receive in a thread; when it has ended, tell how long that took and what came."""
    took: list[float] = []

    def wait() -> None:
        began = time.monotonic()
        assert inbox.receive(20.0) == []
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, took


def test_a_wake_ends_all_waits_of_the_process_with_nothing(place: Place) -> None:
    bus = place.open()
    waits = [_waits(bus.manager_inbox()), _waits(bus.worker_inbox([uuid(1)]))]
    time.sleep(0.5)
    began = time.monotonic()
    bus.wake()
    for thread, took in waits:
        thread.join()
        assert took[0] < 20.0
    assert time.monotonic() - began < AT_ONCE


def test_a_wake_that_comes_before_the_wait_is_not_lost(place: Place) -> None:
    bus = place.open()
    inbox = bus.manager_inbox()
    assert inbox.receive(0.0) == []
    bus.wake()
    began = time.monotonic()
    assert inbox.receive(20.0) == []
    assert time.monotonic() - began < AT_ONCE
    assert inbox.receive(0.3) == []
    assert time.monotonic() - began >= 0.3


def test_a_message_for_others_does_not_end_the_wait(place: Place) -> None:
    bus = place.open()
    inbox = bus.worker_inbox([uuid(1)])
    bus.publish([assign(2)])
    began = time.monotonic()
    assert inbox.receive(0.8) == []
    assert time.monotonic() - began >= 0.79


PUBLISHER = """
bus.publish([Heartbeat("00000000-0000-4000-8000-000000000000", InstanceState.IDLE, 0)])
for number in range(1, 4):
    print("ready", flush=True)
    sys.stdin.readline()
    beat = Heartbeat(f"00000000-0000-4000-8000-00000000000{number}", InstanceState.IDLE, 0)
    time.sleep(0.3)  # Until the other one has looked, and waits.
    began = time.time()
    bus.publish([beat])
    print(began, flush=True)
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_message_of_another_process_ends_the_wait_at_once(place: Place) -> None:
    inbox = place.open().manager_inbox()
    delays = []
    with place.process(PUBLISHER) as child:
        # The first opens connections on both sides.
        inbox.done(take(inbox, 1))
        for _ in range(3):
            assert line_of(child) == "ready"
            tell(child)
            taken = inbox.receive(20.0)
            came = time.time()
            assert len(taken) == 1
            delays.append(came - float(line_of(child)))
            inbox.done(taken)
    # The machine may be busy once; a bus that is looked at by the clock would be late thrice.
    assert min(delays) < SOON, delays


def test_publishing_waits_for_nothing_and_the_bus_comes_back(place: Place) -> None:
    bus = place.open()
    inbox = bus.manager_inbox()
    bus.publish([heartbeat(0)])
    inbox.done(take(inbox, 1))
    with place.away():
        began = time.monotonic()
        bus.publish([heartbeat(number) for number in range(1, 500)])
        assert time.monotonic() - began < AT_ONCE
    # Those of the meantime may be lost, these not.
    deadline = time.monotonic() + 30
    came: list[object] = []
    while heartbeat(1000) not in came:
        assert time.monotonic() < deadline
        bus.publish([heartbeat(1000)])
        taken = inbox.receive(1.0)
        came += read(taken)
        inbox.done(taken)


def test_many_messages_are_published_and_taken_in_one_go(place: Place) -> None:
    bus = place.open()
    beats = [heartbeat(number) for number in range(5000)]
    bus.publish(beats)
    inbox = bus.manager_inbox()
    taken = take(inbox, 5000)
    assert read(taken) == beats
    inbox.done(taken)
    inbox.close()
    bus.publish([heartbeat(5000)])
    assert read(take(bus.manager_inbox(), 1)) == [heartbeat(5000)]


def test_a_bus_and_its_inboxes_are_closed_as_often_as_one_likes(place: Place) -> None:
    bus = place.open()
    inboxes = [bus.manager_inbox(), bus.worker_inbox([uuid(1)])]
    for _ in range(2):
        for inbox in inboxes:
            inbox.close()
    bus.close()
    bus.close()


def test_topics_are_created_as_often_as_one_likes(place: Place) -> None:
    place.open().create_channels()
    place.open().create_channels()
