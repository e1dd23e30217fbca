"""A worker's slots over a real store and bus, with a lake in which there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as running

import pytest

from benchmarks.crew import Gear, Place
from benchmarks.executions import prepare
from benchmarks.idle_lake import IdleLake
from tidegate.control.lifecycle import Lifecycle
from tidegate.errors import WrongUse
from tidegate.model.execution import Execution, ExecutionState, Outcome, new_execution
from tidegate.model.flow import Flow, Kind
from tidegate.model.instances import Instance, InstanceStatus, Pace, Sharing, Writers
from tidegate.model.messages import (
    Assign,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Rejected,
    parse,
)
from tidegate.model.position import Position
from tidegate.ports.outside import Inbox
from tidegate.ports.store import Store
from tidegate.tables.plan import Limits, with_limits
from tidegate.tables.runner import Load

SELDOM = Pace(heartbeat=600_000)
"""After the first beat, a slot says that it is free only of its own accord."""


class Gate(IdleLake):
    """A lake whose loads wait for the test, where it wants them to."""

    begun: Event
    open: Event

    def run(self, load: Load) -> Outcome:
        self.begun.set()
        assert self.open.wait(30)
        return super().run(load)


@dataclass
class Crew:
    """One worker with one slot, and what it says."""

    gear: Gear
    gate: Gate
    inbox: Inbox
    life: Lifecycle
    heard: list[Message] = field(default_factory=list)

    def give(self) -> Execution:
        """Assign one more execution, as a leader does."""
        [instance] = self.gear.store.instances.all()
        now = self.gear.runtime.now()
        limits = Limits(as_of=now, frontier=Position(now, 0), bound=now, complete_to=now)
        made = new_execution(
            self.gear.runtime.uuid(),
            Flow("fact.t0", Kind.TABLE, "fact.t0"),
            now,
            configuration=with_limits(limits),
            worker=instance.id,
        )
        self.gear.store.executions.assign(made)
        self.gear.bus.publish([Assign(instance.id, made.id, made.configuration, now)])
        return made

    def hear(self, kind: type[Message], *, of: str | None = None) -> Message:
        """Listen until something of the kind was said, of an execution."""
        for _ in range(30):
            for message in self.heard:
                if isinstance(message, kind) and of in (None, getattr(message, "execution_id", "")):
                    return message
            deliveries = self.inbox.receive(1)
            self.heard += [parse(one.channel, one.body) for one in deliveries]
            self.inbox.done(deliveries)
        raise AssertionError(f"no {kind.__name__} among {self.heard}")

    @property
    def states(self) -> list[InstanceState]:
        """What the slot said of itself."""
        return [one.state for one in self.heard if isinstance(one, Heartbeat)]


def _wait_for(threads: set[Thread]) -> None:
    """Let each thread of a worker end: one that finds its store closed ends the process."""
    for thread in threads:
        if thread.name != "store":
            thread.join(30)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    place = Place(tmp_path)
    prepare(place, 1)
    gear = Gear.at(place)
    gate = Gate(gear.runtime)
    gate.begun, gate.open = Event(), Event()
    gate.open.set()
    gear = Gear(gear.store, gear.bus, gear.holders, gear.runtime, gate)
    life, inbox, before = Lifecycle(), gear.bus.manager_inbox(), set(running())
    gear.runtime.spawn("worker", gear.worker(1, "worker0", SELDOM, life).serve)
    crew = Crew(gear, gate, inbox, life)
    crew.hear(Heartbeat)
    yield crew
    life.stop()
    _wait_for(set(running()) - before)
    inbox.close()
    gear.bus.close()
    gear.store.close()


def test_the_end_of_an_execution_says_that_its_slot_is_free(crew: Crew) -> None:
    for _ in range(3):
        made = crew.give()
        crew.hear(Finished, of=made.id)
    assert crew.states == [InstanceState.IDLE]
    assert not any(isinstance(one, Rejected) for one in crew.heard)
    ends = crew.gear.store.executions.list(state=ExecutionState.FINISHED)
    assert len(ends) == 3


def test_a_slot_that_refused_says_when_it_is_free(crew: Crew) -> None:
    crew.gate.open.clear()
    first = crew.give()
    assert crew.gate.begun.wait(30)
    second = crew.give()
    crew.hear(Rejected, of=second.id)
    crew.heard.clear()
    crew.gate.open.set()
    crew.hear(Finished, of=first.id)
    crew.hear(Heartbeat)
    assert crew.states == [InstanceState.IDLE]


ONE_HOST = Sharing(Writers.ONE_HOST, "/lake")
AFAR = Instance("i", name="w", host="afar", process="afar:1:x", kinds=("table",))


@pytest.fixture
def gear(tmp_path: Path) -> Iterator[Gear]:
    place = Place(tmp_path)
    prepare(place, 1)
    gear, before = Gear.at(place), set(running())
    yield gear
    _wait_for(set(running()) - before)
    gear.bus.close()
    gear.store.close()


def _until_known(store: Store, served: Future[None]) -> None:
    while not store.instances.all():
        assert not served.done(), served.exception()
        # Who asks again and again keeps others from the store.
        Event().wait(0.05)


def test_a_worker_that_finds_its_lake_taken_does_not_begin(gear: Gear) -> None:
    gear.store.instances.register([AFAR], ONE_HOST)
    with pytest.raises(WrongUse, match="a worker lives on afar"):
        gear.worker(1, "t", Pace(), Lifecycle(), ONE_HOST).serve()
    assert [one.id for one in gear.store.instances.all()] == [AFAR.id]


def test_a_worker_that_lost_its_lake_while_it_was_silent_gives_way(gear: Gear) -> None:
    life, store = Lifecycle(), gear.store
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(gear.worker(1, "t", Pace(heartbeat=200), life, ONE_HOST).serve)
        _until_known(store, served)
        # As if it had not been heard for long, and a worker elsewhere had come up since.
        hasty = Sharing(Writers.ONE_HOST, "/lake", dead_after=-1_000)
        store.instances.register([AFAR], hasty)
        with pytest.raises(WrongUse, match="a worker lives on afar"):
            served.result(30)
    assert life.stopping
    statuses = {one.host: one.status for one in store.instances.all()}
    assert statuses.pop("afar") is InstanceStatus.ALIVE
    assert list(statuses.values()) == [InstanceStatus.UNLOADED]


def test_a_worker_frees_what_a_process_of_its_host_left(gear: Gear) -> None:
    life, store = Lifecycle(), gear.store
    host = gear.holders.me.partition(":")[0]
    made = new_execution("e-1", Flow("fact.t0", Kind.TABLE, "fact.t0"), 1, worker="gone")
    store.executions.assign(made)
    store.blocks.claim(made, f"{host}:999999999:gone", None, 2)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(gear.worker(1, "t", Pace(), life, ONE_HOST).serve)
        _until_known(store, served)
        life.stop()
        served.result(30)
    assert not store.blocks.holders()
    lost = store.executions.get("e-1")
    assert lost is not None
    assert lost.state is ExecutionState.LOST
