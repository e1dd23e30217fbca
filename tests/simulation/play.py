"""One seed: a crew, data coming, trouble, then calm, and the verdict."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from unittest.mock import patch

from sqlalchemy import Connection

from tests.kinds.counting import CountDefinition
from tests.property.lake import Row, Table
from tidegate.model.execution import queued
from tidegate.model.flow import Definition
from tidegate.model.instances import host_of
from tidegate.store import executions, fleet
from tidegate.tables.definition import Processor, TableDefinition

from .crew import AWAY, HOME, KINDS, LONGEST_LINGER, PACE, Harbour, Member
from .database import Database, calm_store
from .faults import SLOW, Faults
from .guards import Guard, without
from .heap import Heap
from .network import Network
from .sea import Sea
from .witness import TRIGGERS, Witness

BEGIN = 1_000_000
TROUBLE = 6_000
"""Milliseconds in which things go wrong: many short plays see more than a few long ones."""
CALM = 3 * PACE.dead_after
"""In so long, work must go on: I8."""
LOOK_EVERY = 500
LEFT_OVER = 30_000
"""For the work itself, which goes on then."""
COUNTED = "stage.counted"
"""The table that a flow of another kind lands its rows in."""


@dataclass(frozen=True)
class Verdict:
    """How a play ended."""

    seed: int
    broken: str | None
    story: tuple[str, ...]
    events: int


def play(seed: int, missing: Guard | None = None) -> Verdict:
    """Play a seed, with every guard or without one of them."""
    with without(missing):
        return _Play(seed, missing).run()


class _Play:
    def __init__(self, seed: int, missing: Guard | None) -> None:
        self._seed = seed
        chance = self._chance = Random(seed)
        heap = self._heap = Heap(BEGIN)
        self._story: list[str] = []
        database = Database(lambda: heap.now, chance, TRIGGERS)
        sea = Sea(heap.after, chance)
        sea.skips_repeats = missing is not Guard.TRANSACTION
        network = Network(heap.after, chance)
        self._harbour = Harbour(
            heap, chance, database, network, sea, self._tell, calm_store(database, KINDS)
        )
        self._counts = list(self._counted())
        self._definitions = {one.topic: one for one in self._lineage()}
        self._apply([*self._definitions.values(), *self._counts])
        self._witness = Witness(database, sea, self._definitions, self._counts, self._tell)
        self._crew: list[Member] = []
        self._faults = Faults(self._harbour, chance, lambda: self._crew)
        self._faults.unlocks = sea.atomic = chance.random() < 0.3
        # Of their own, so that a play on one host is what it was.
        self._hosts = Random(f"hosts {seed}")
        self._two_hosts = self._hosts.random() < 0.3
        self._calm = False
        self._landed = 0

    def _tell(self, what: str) -> None:
        self._story.append(f"{(self._heap.now - BEGIN) / 1000:6.2f} {what}")

    def _apply(self, definitions: Sequence[Definition]) -> None:
        at = int(self._heap.now)
        self._harbour.operator.definitions.apply(definitions, (), "play", at)

    def _lineage(self) -> Iterator[TableDefinition]:
        """A source with one or two tables of it, in a chain or side by side."""
        chance = self._chance
        yield TableDefinition("stage.s", Processor.SOURCE)
        yield TableDefinition("stage.dim", Processor.SOURCE)
        base = "stage.s"
        if self._counts and chance.random() < 0.5:
            # What is landed is built from, too: it must never come in behind what was taken.
            yield TableDefinition(COUNTED, Processor.SOURCE)
            yield self._step("fact.numbers", COUNTED)
        for number in range(chance.randint(1, 2)):
            match chance.choice(["chain", "chain", "tags", "checked"]):
                case "chain":
                    yield self._step(f"fact.t{number}", base)
                    base = f"fact.t{number}"
                case "tags":
                    yield self._step(f"fact.t{number}#a", base, tagged=True)
                    yield self._step(f"fact.t{number}#b", base, tagged=True)
                case _:
                    yield self._step(f"fact.t{number}", base, unwaited=("stage.dim",))

    def _step(
        self, topic: str, base: str, *, tagged: bool = False, unwaited: tuple[str, ...] = ()
    ) -> TableDefinition:
        return TableDefinition(
            topic,
            Processor.STEP,
            depends_on=(base,),
            transforms=("view",),
            unwaited=unwaited,
            repeat=1_000,
            maxstep=self._chance.choice([2, 3, 1_000]),
            tagged=tagged,
        )

    def _counted(self) -> Iterator[CountDefinition]:
        """A flow of another kind than tables, or none."""
        chance = self._chance
        if chance.random() < 0.6:
            goals = {thing: chance.randint(1, 7) for thing in ("apples", "pears")}
            yield CountDefinition(
                "count-fruit",
                COUNTED,
                goals,
                at_once=chance.choice([1, 2, 5]),
                blocks=chance.choice([1, 2, 4]),
            )

    def run(self) -> Verdict:
        self._arrange()
        with _leaders_watched(self._witness), _quiet():
            self._go_until(BEGIN + TROUBLE)
            self._faults.end()
            self._calm = True
            self._tell("calm")
            end = BEGIN + TROUBLE + CALM + LEFT_OVER
            while self._heap.now < end and self._witness.satisfied and not self._is_done():
                self._go_until(self._heap.now + LOOK_EVERY)
            self._harbour.clear()
        broken = self._witness.broken
        if broken is None and not self._is_done():
            broken = f"I8: {'; '.join(self._witness.unfinished())}"
            self._tell(f"BROKEN {broken}")
        return Verdict(self._seed, broken, tuple(self._story), self._heap.events)

    def _arrange(self) -> None:
        chance, heap = self._chance, self._heap
        self._harbour.sea.tables["stage.dim"] = Table(positioned=True)
        roles = ["manager", "worker", "manager worker", "worker"][: chance.choice([3, 3, 4])]
        for role in roles:
            # One with both parts is at home, so that it can do without the other host.
            host = HOME if role == "manager worker" else self._some_host()
            self._keep_up(role, chance.randint(1, 2), host)
        if self._two_hosts and self._hosts.random() < 0.5:
            heap.at(BEGIN + self._hosts.uniform(0, TROUBLE), self._lose_a_host)
        self._land_rows()
        for one in self._counts:
            if chance.random() < 0.5:
                heap.at(BEGIN + chance.uniform(0, TROUBLE), partial(self._count_on, one))
        if chance.random() < 0.3:
            self._foreign()
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 3)):
                heap.at(BEGIN + chance.uniform(0, TROUBLE), self._run_by_hand)
        self._faults.begin(every=chance.choice([400, 800, 1_500]))

    def _go_until(self, time: float) -> None:
        self._heap.run(time, lambda: self._witness.broken is not None)

    def _is_done(self) -> bool:
        return not self._witness.unfinished()

    def _some_host(self) -> str:
        return self._hosts.choice([HOME, AWAY]) if self._two_hosts else HOME

    def _lose_a_host(self) -> None:
        self._tell(f"{AWAY} dies for good")
        self._harbour.lose_host(AWAY)
        if not self._harbour.sea.atomic:
            # Somebody who knows that it will not come back says so: nobody else can.
            self._heap.after(self._hosts.uniform(0, TROUBLE), self._unlock_the_lost)

    def _unlock_the_lost(self) -> None:
        held = self._harbour.database.ask("SELECT topic, hostid FROM offsets WHERE hostid <> ''")
        for topic, hostid in held:
            if host_of(hostid) == AWAY:
                self._unlock(topic)

    def _unlock(self, topic: str) -> None:
        self._tell(f"{topic} is unlocked, since its holder is gone for good")
        self._harbour.operator.blocks.unlock(topic, int(self._heap.now))

    def _keep_up(self, role: str, slots: int, host: str) -> None:
        """Start a process, and another one in its place whenever it ends."""
        if host in self._harbour.lost_hosts:
            return
        member = self._harbour.start(role, slots, host)
        self._crew.append(member)

        def again() -> None:
            self._crew.remove(member)
            pause = self._chance.uniform(200, 4_000)
            self._heap.after(pause, lambda: self._keep_up(role, slots, host))

        member.process.on_death.append(again)

    def _run_by_hand(self) -> None:
        topics = [t for t, d in self._definitions.items() if d.processor is Processor.STEP]
        host = self._some_host()
        if host in self._harbour.lost_hosts:
            return
        member = self._harbour.start_run([*topics, *(one.name for one in self._counts)], host)
        member.process.slow = self._chance.choice([0.0, SLOW])
        self._crew.append(member)

        def clear_up() -> None:
            self._crew.remove(member)
            if self._two_hosts:
                # It has no heartbeat: of one on another host only a person knows that it is gone.
                self._heap.after(LONGEST_LINGER + 1_000, lambda: self._unlock_run(member))

        member.process.on_death.append(clear_up)

    def _unlock_run(self, run: Member) -> None:
        held = self._harbour.database.ask("SELECT topic FROM offsets WHERE hostid = ?", run.hostid)
        for (topic,) in held:
            self._unlock(topic)

    def _land_rows(self) -> None:
        """Orders in a few commits, and their customers, some of them late."""
        chance = self._chance
        commits = [chance.randint(1, 4) for _ in range(chance.randint(2, 4))]
        for number, rows in enumerate(commits):
            time = BEGIN + chance.uniform(0, TROUBLE) if number else BEGIN
            self._heap.at(time, partial(self._land, rows))
        for id in range(3, sum(commits) + 1, 3):
            time = BEGIN + chance.uniform(0, 1.2 * TROUBLE)
            self._heap.at(time, partial(self._land_customer, id))

    def _land(self, count: int) -> None:
        first, now = self._landed + 1, int(self._heap.now)
        self._landed += count
        self._tell(f"orders {first} to {self._landed} land")
        rows = [Row(now, id, f"s{id}") for id in range(first, self._landed + 1)]
        self._harbour.sea.land("stage.s", rows)

    def _count_on(self, known: CountDefinition) -> None:
        """Let more be counted, and another thing."""
        more = {thing: goal + 2 for thing, goal in known.goals.items()} | {"quinces": 3}
        wanted = replace(known, goals=more)
        self._tell(f"{known.name} counts on, to {more}")
        self._witness.wants(wanted)
        self._apply([wanted])

    def _land_customer(self, id: int) -> None:
        self._harbour.sea.land("stage.dim", [Row(int(self._heap.now), id, f"dim{id}")])

    def _foreign(self) -> None:
        chance = self._chance

        def keep_up() -> None:
            process = self._harbour.start_foreign()
            process.on_death.append(lambda: self._heap.after(2_000, keep_up))
            if not self._calm and chance.random() < 0.5:
                self._heap.after(chance.uniform(0, TROUBLE), process.kill)

        keep_up()
        for number in range(chance.randint(1, 2)):
            id = f"ffffffff-0000-4000-8000-{number:012x}"
            at = BEGIN + chance.uniform(0, TROUBLE)
            self._heap.at(at, partial(self._submit, id))

    def _submit(self, id: str) -> None:
        self._tell(f"execution {id[-4:]} is submitted")
        self._harbour.operator.executions.assign(queued(id, {}, (), int(self._heap.now)))


@contextmanager
def _leaders_watched(witness: Witness) -> Iterator[None]:
    """See the term of every write that a leader makes."""
    guard = vars(executions)["require_term"]

    def watched(connection: Connection, term: int | None) -> None:
        guard(connection, term)
        witness.leader_writes(term)

    with (
        patch.object(executions, "require_term", watched),
        patch.object(fleet, "require_term", watched),
    ):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """The services warn of what is done to them: thousands of lines that nobody needs."""
    logger = logging.getLogger("tidegate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
