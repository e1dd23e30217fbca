"""What a leader's turn costs over many topics and a long past, in peace and when a table moves."""

from __future__ import annotations

import os.path
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sqlalchemy import insert

from benchmarks.bed import Options, bench_parts, judge, land
from tidegate.cli.output import print_table
from tidegate.control.leader import Elector, Leader
from tidegate.model.duration import HOUR
from tidegate.model.execution import ExecutionState
from tidegate.model.flow import Kind
from tidegate.model.instances import FOR_ALL, Instance, Pace
from tidegate.model.position import Offset, OffsetState, Position
from tidegate.ports.outside import Inbox
from tidegate.store import SqlStore
from tidegate.store.positions import columns_of
from tidegate.store.schema import etl_executions, offsets
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.wiring import Parts

PAST = 100_000
INSTANCES = 64
PACE = Pace(loop=0, lease=HOUR, dead_after=HOUR)


def leaders_turn(options: Options) -> None:
    """Time turns over chains of five topics, each chain on a landed Delta table of its own.

    The bare work is what no turn can leave out: one look for a new commit in the log of each landed
    table, and one read of every topic's stamp. Ours is all of a turn: lease, messages, instances,
    open executions, lineage, plan, and where a table has moved the assign, stored and published.
    """
    chains = max(1, options.topics // 5)
    with _stage(chains) as stage:
        calm, bare, moved = list[Spent](), list[Spent](), list[Spent]()
        # The first turn reads everything, the second writes down what was seen to have landed.
        stage.turn()
        stage.turn()
        for chain in range(options.repeats):
            with _timed(calm):
                stage.turn()
            with _timed(bare):
                stage.bare(chains)
            stage.land(chain)
            with _timed(moved):
                stage.turn()
            stage.turn()
        told = len(stage.parts.store.executions.open())
        if told != options.repeats:
            raise SystemExit(f"{told} executions were assigned, not {options.repeats}")
    lines = [
        (chains * 5, PAST, what, *_medians(bare), *_medians(spent))
        for what, spent in (("calm", calm), ("a table moved", moved))
    ]
    columns = ("topics", "past", "turn", "bare ms", "processor", "ours ms", "processor")
    print_table(columns, lines, empty="")
    # Of the processor: by the clock a turn takes what others leave of the machine.
    for line in lines:
        judge(f"turn, {line[2]}, processor's ms", line[6], 100)


Spent = tuple[float, float]
"""Milliseconds by the clock, and of the processor."""


@contextmanager
def _timed(into: list[Spent]) -> Iterator[None]:
    clock, processor = time.perf_counter(), time.process_time()
    yield
    into.append(((time.perf_counter() - clock) * 1000, (time.process_time() - processor) * 1000))


def _medians(spent: list[Spent]) -> Spent:
    clock, processor = zip(*spent, strict=True)
    return statistics.median(clock), statistics.median(processor)


@dataclass
class Stage:
    """A leader over a store that has seen much, and a lake in which little happens."""

    parts: Parts
    leader: Leader
    inbox: Inbox
    newest: int

    def turn(self) -> None:
        self.leader.turn(self.inbox)

    def bare(self, chains: int) -> None:
        for chain in range(chains):
            log = f"{self.parts.tables.path(f'stage.s{chain}')}/_delta_log"
            os.path.exists(f"{log}/{1:020d}.json")
        self.parts.store.offsets.stamps()

    def land(self, chain: int) -> None:
        land(self.parts.tables.path(f"stage.s{chain}"), [self.newest + 1], [1])


@contextmanager
def _stage(chains: int) -> Iterator[Stage]:
    with bench_parts({}) as parts, parts.bus() as bus:
        store, now = parts.store, parts.runtime.now()
        if not isinstance(store, SqlStore):
            raise SystemExit("the benchmark fills tables of its own, and needs the real store")
        newest = now - 60_000
        _land_all(parts, chains, newest)
        store.definitions.apply(_definitions(chains), [], "bench", now)
        _fill(store, chains, newest, now)
        mine = Instance("", name="w", host="afar", process="afar:1:x", kinds=(Kind.TABLE,))
        hired = [Instance(**{**vars(mine), "id": parts.runtime.uuid()}) for _ in range(INSTANCES)]
        store.instances.register(hired)
        elector = Elector(store.leadership, "bench", PACE.lease)
        elector.stand()
        inbox = bus.manager_inbox()
        planners, holders, runtime = parts.planners(), parts.holders, parts.runtime
        leader = Leader(1, elector, store, bus, planners, holders, runtime, PACE, FOR_ALL)
        yield Stage(parts, leader, inbox, newest)
        inbox.close()


def _definitions(chains: int) -> list[TableDefinition]:
    bases = [(f"stage.s{c}", *(f"fact.t{c}_{level}" for level in range(5))) for c in range(chains)]
    return [
        TableDefinition(topic, Processor.STEP, (base,), repeat=0)
        for chain in bases
        for base, topic in pairwise(chain)
    ]


def _land_all(parts: Parts, chains: int, newest: int) -> None:
    """Land one table, and copy it for the others: only their logs are ever read."""
    first = Path(parts.tables.path("stage.s0"))
    land(str(first), [newest], [1])
    for chain in range(1, chains):
        shutil.copytree(first, parts.tables.path(f"stage.s{chain}"))


def _fill(store: SqlStore, chains: int, newest: int, now: int) -> None:
    """Let every topic have come to the end of its base, and many executions lie behind it."""
    topics = [f"fact.t{chain}_{level}" for chain in range(chains) for level in range(5)]
    at = Position(newest, 1)
    stamps = {"created_at": now, "updated_at": now}
    positions = [
        {"topic": topic, **stamps, **columns_of(_reached(topic, at, now))} for topic in topics
    ]
    past = [
        {
            "id": f"past-{number}",
            "flow_kind": Kind.TABLE.value,
            "flow_id": topics[number % len(topics)],
            "topic": topics[number % len(topics)],
            "attempt": 1,
            "etl_worker": "gone",
            "state": ExecutionState.FINISHED.value,
            "assigned_at": now - number,
            "finished_at": now - number,
            "comment": "",
            "configuration": {},
            **stamps,
        }
        for number in range(PAST)
    ]
    store.writer.write(lambda connection: connection.execute(insert(offsets), positions).close())
    store.writer.write(lambda connection: connection.execute(insert(etl_executions), past).close())


def _reached(topic: str, at: Position, now: int) -> Offset:
    return Offset(topic, at, seq=1, rows=1, run=now, state=OffsetState.DONE, complete_to=at.pos)
