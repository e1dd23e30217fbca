"""Whatever comes on the topics: no reader stops, memory stays flat, each bad message is counted."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from tests.brokers import Broker
from tests.projects import Folder
from tidegate.control.lifecycle import Lifecycle
from tidegate.model.execution import Execution, ExecutionState, queued
from tidegate.model.messages import (
    Accepted,
    Channel,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Shutdown,
    Started,
    channel_of,
    render,
)
from tidegate.ports.outside import Bus
from tidegate.ports.store import OutgoingMessage, Store
from tidegate.runtime import RealRuntime
from tidegate.store.messages import MOST_ROWS
from tidegate.wiring import Hiring, open_parts, read_project

from .conftest import settings
from .fuzz import STRANGER, Fuzz, is_bad
from .processes import until

SEED = int(os.environ.get("TIDEGATE_SEED", "7"))
BATCH = 150
MOST_GROWTH = 32 * 1024 * 1024
"""Between a first third and the end: batches come and go, and with them what Python keeps ready."""
JOB = "cccccccc-0000-4000-8000-000000000003"

Put = Callable[[Channel, str, list[bytes]], None]


class Watched(RealRuntime):
    """Threads whose end is told to the test, and not by the end of its process."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (it is asserted on)
                self.failures.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()


@dataclass
class Readers:
    """A leader and a worker in this process, as `tidegate worker` has them."""

    store: Store
    bus: Bus
    runtime: Watched
    put: Put
    slots: tuple[str, ...]
    expected: int = 0
    sent: int = 0

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self.put(channel_of(message), self.slots[0], [render(message)])

    def counted(self) -> int:
        assert self.runtime.failures == [], f"a reader stopped; TIDEGATE_SEED={SEED}"
        return sum(self.store.rejected.totals().values())

    def job(self) -> Execution:
        found = self.store.executions.get(JOB)
        assert found is not None
        return found

    def feed(self, topic: Channel, bodies: list[bytes]) -> None:
        """Send a batch, and wait until what is bad in it is counted."""
        self.put(topic, self.slots[0], bodies)
        self.sent += len(bodies)
        self.expected += sum(is_bad(topic, body, self.slots) for body in bodies)
        until(
            lambda: self.counted() >= self.expected,
            f"{self.expected} of {self.sent} messages are counted; TIDEGATE_SEED={SEED}",
            60,
        )


@contextmanager
def reading(shop: Folder, put: Put | None = None) -> Iterator[Readers]:
    with ExitStack() as stack:
        parts = stack.enter_context(open_parts(read_project(shop.path)))
        parts.runtime = runtime = Watched()
        bus = stack.enter_context(parts.bus())
        bus.create_channels()
        # Nothing is applied, so nothing is due, and Spark is never started.
        spark = stack.enter_context(parts.spark())
        life = Lifecycle()
        life.on_stop(bus.wake)
        runtime.spawn("manager", parts.manager(bus, life).serve)
        worker = parts.worker(spark, bus, life, Hiring("w", 2))
        runtime.spawn("worker", worker.serve)
        store = parts.store
        known = until(store.instances.all, "the worker registers")
        slots = tuple(one.id for one in known)
        yield Readers(store, bus, runtime, put or _rows(store), slots)
        if not life.stopping:
            life.stop()
        for thread in runtime.threads:
            if thread.name in ("manager", "worker"):
                thread.join(30)


def _rows(store: Store) -> Put:
    def put(topic: Channel, key: str, bodies: list[bytes]) -> None:
        store.messages.put(
            [OutgoingMessage(topic, key, body) for body in bodies], RealRuntime().now()
        )

    return put


def _records(broker: Broker, prefix: str) -> Put:
    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})

    def put(topic: Channel, _key: str, bodies: list[bytes]) -> None:
        for body in bodies:
            producer.produce(f"{prefix}{topic}", body, partition=0)
        assert producer.flush(30) == 0

    return put


@pytest.fixture(params=["sqlite", "kafka"])
def readers(shop: Folder, request: pytest.FixtureRequest) -> Iterator[Readers]:
    if request.param == "sqlite":
        with reading(shop) as readers:
            yield readers
        return
    broker: Broker = request.getfixturevalue("broker")
    prefix = f"fuzz{os.getpid()}{time.monotonic_ns()}."
    bus = f'url = "kafka://{broker.servers}"\nprefix = "{prefix}"'
    shop.write({"tidegate.toml": settings(bus=bus)})
    with reading(shop, _records(broker, prefix)) as readers:
        yield readers


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.long)])
def test_nothing_that_comes_stops_a_reader_and_all_of_it_is_counted(
    readers: Readers, seconds: int
) -> None:
    fuzz = Fuzz(Random(SEED), readers.slots)
    sources = {topic: fuzz.bodies(topic) for topic in Channel}
    start, before = time.monotonic(), 0
    while (passed := time.monotonic() - start) < seconds:
        for topic, bodies in sources.items():
            readers.feed(topic, list(itertools.islice(bodies, BATCH)))
        if passed > seconds / 3 and not before:
            before = resident()
    growth = resident() - before
    print(f"{readers.sent:,} messages, {readers.expected:,} bad, {growth / 2**20:+.1f} MB")
    assert growth < MOST_GROWTH
    assert readers.counted() == readers.expected
    assert len(readers.store.rejected.list()) <= MOST_ROWS

    # The leader still follows what it is told of an execution …
    store = readers.store
    store.executions.assign(queued(JOB, {"do": "it"}, [], 1))
    readers.tell(Heartbeat(STRANGER, InstanceState.IDLE, 1))
    told = until(lambda: readers.job().etl_worker, "it is given to an instance")
    readers.tell(Accepted(JOB, told, 2), Started(JOB, told, 3), Finished(JOB, told, 4))
    until(lambda: readers.job().state is ExecutionState.FINISHED, "it is finished")
    # … and the worker what it is told to do.
    readers.tell(Shutdown(readers.slots[0], 5))
    (serving,) = [one for one in readers.runtime.threads if one.name == "worker"]
    serving.join(30)
    assert not serving.is_alive()
    assert readers.runtime.failures == []
