"""How long it takes from a commit to the assign of what it has made due, as a worker hears it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bed import Options, judge
from benchmarks.crew import Gear, Place, process
from tests.brokers import Broker
from tidegate.cli.output import print_table
from tidegate.model.flow import Kind
from tidegate.model.instances import Instance
from tidegate.model.messages import Assign, Heartbeat, InstanceState, parse
from tidegate.ports.outside import Inbox
from tidegate.tables.definition import Processor, TableDefinition

UPSTREAM, DOWNSTREAM = "fact.t0", "fact.t1"
PATIENCE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_TARGETS = {"embedded": 50.0, "Kafka": 200.0}


def commit_to_assign(options: Options) -> None:
    """Play a worker that runs two topics in turn, one built from the other.

    Counted from the time that the commit carries, so with its fsync, to the moment at which the
    other topic's assign is in hand: heard of by the manager, planned, stored, published, received.
    The bare work is what is durable of that: three commits to the same file with nothing in them
    but a row.
    """
    lines = []
    for name in _TARGETS:
        with _place(name) as place, _worker(place) as worker:
            bare = sorted(worker.bare() for _ in range(options.repeats * 5))
            spent = sorted(worker.turn() for _ in range(options.repeats * 20))
        lines.append((name, len(spent), *_points(bare), *_points(spent)))
    columns = ("bus", "times", "bare p50 ms", "p99 ms", "ours p50 ms", "p99 ms")
    print_table(columns, lines, empty="")
    for name, *_, worst in lines:
        judge(f"commit to assign, {name}, p99 ms", worst, _TARGETS[name])


def _points(spent: list[float]) -> tuple[float, float]:
    return statistics.median(spent), spent[min(len(spent) - 1, len(spent) * 99 // 100)]


@contextmanager
def _place(bus: str) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        if bus == "embedded":
            yield Place(Path(folder))
            return
        broker = Broker(Path(folder))
        stack.callback(broker.stop)
        broker.start()
        yield Place(Path(folder), f"kafka://{broker.servers}")


@dataclass
class Player:
    """Two instances, played by hand."""

    gear: Gear
    inbox: Inbox
    instances: list[str]
    waiting: dict[str, Assign]
    beaten_at: float = 0.0

    def turn(self) -> float:
        """Run the upstream topic, and give the milliseconds until the other one is ordered."""
        committed = self._run(self._ordered(UPSTREAM))
        order = self._ordered(DOWNSTREAM)
        spent = time.time() * 1000 - committed
        self._run(order)
        return spent

    def bare(self) -> float:
        begin = time.perf_counter()
        for _ in range(3):
            self.gear.store.controls.note("bench", "bench", "wait", 0)
        return (time.perf_counter() - begin) * 1000

    def _ordered(self, topic: str) -> Assign:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while topic not in self.waiting:
            if time.monotonic() > deadline:
                raise SystemExit(f"{topic} was not ordered")
            self._beat()
            deliveries = self.inbox.receive(0.5)
            self.inbox.done(deliveries)
            for message in (parse(one.channel, one.body) for one in deliveries):
                if isinstance(message, Assign):
                    self.waiting[message.configuration["id"]] = message
        return self.waiting.pop(topic)

    def _run(self, order: Assign) -> int:
        execution = self.gear.store.executions.get(order.execution_id)
        if execution is None:
            raise SystemExit(f"execution {order.execution_id} is not in the store")
        ended = self.gear.executor().execute(execution)
        if ended.finished_at is None or ended.comment:
            raise SystemExit(f"{ended.topic} is {ended.state}: {ended.comment}")
        return ended.finished_at

    def _beat(self) -> None:
        if time.monotonic() - self.beaten_at > BEAT_SECONDS:
            self.beaten_at, now = time.monotonic(), self.gear.runtime.now()
            idle = InstanceState.IDLE
            self.gear.bus.publish([Heartbeat(id, idle, now) for id in self.instances])


@contextmanager
def _worker(place: Place) -> Iterator[Player]:
    with process("manager", place):
        gear = _geared(place)
        definitions = [
            TableDefinition(UPSTREAM, Processor.STEP, ("stage.s0",), transforms=("a",), repeat=0),
            TableDefinition(DOWNSTREAM, Processor.STEP, (UPSTREAM,), transforms=("a",), repeat=0),
        ]
        gear.store.definitions.apply(definitions, [], "bench", gear.runtime.now())
        ids = [gear.runtime.uuid() for _ in range(2)]
        inbox = gear.bus.worker_inbox(ids)
        me = gear.holders.me
        mine = [Instance(id, host="here", process=me, kinds=(Kind.TABLE,)) for id in ids]
        gear.store.instances.register(mine)
        yield Player(gear, inbox, ids, {})
        inbox.close()
        gear.bus.close()
        gear.store.close()


def _geared(place: Place) -> Gear:
    """Open everything, the bus when the manager has made its topics."""
    gear = Gear.at(place)
    gear.bus.create_channels()
    return gear
