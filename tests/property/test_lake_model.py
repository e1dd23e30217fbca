"""Tables equal one big INSERT … SELECT, whatever the data, the runs and the kills.

The real store, lookout, executor and foreground run over a lake in memory, with a clock of its own.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete

from tidegate.model.execution import Execution, ExecutionState, Offset, OffsetState
from tidegate.model.lineage import Definition, Processor
from tidegate.model.plan import Plan
from tidegate.model.position import START, Position
from tidegate.services import executor as executor_module
from tidegate.services.executor import Executor
from tidegate.services.foreground import Foreground, Report
from tidegate.services.lookout import Lookout
from tidegate.store import SqlStore, open_store
from tidegate.store.schema import metadata

from .lake import (
    Arrival,
    Died,
    ModelHolders,
    ModelLake,
    ModelRunner,
    ModelRuntime,
    Row,
    Table,
    World,
    transformed,
)
from .profile import examples
from .scenarios import BEGIN, CLOSING, END, Move, Scenario, Source, scenarios


@pytest.fixture(scope="module")
def store() -> Iterator[SqlStore]:
    """One store for all examples, in memory where there is a file system for it."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        closing(open_store(f"sqlite:///{folder}/store.db")) as opened,
    ):
        yield opened


class Silent:
    """Implements `foreground.Watcher` for nobody."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


class Doubled(AssertionError):
    """A row is in a table twice."""


class Play:
    """Plays a scenario, and after every move holds the tables against what was promised."""

    def __init__(self, scenario: Scenario, store: SqlStore) -> None:
        store.writer.write(_empty)
        self.definitions = {each.topic: each for each in scenario.definitions}
        store.lineages.apply(scenario.definitions, (), "test", BEGIN)
        self.store = store
        self.world = World(
            BEGIN,
            [arrival for source in scenario.sources for arrival in source.arrivals],
            scenario.kinds,
            scenario.ticks,
        )
        for source in scenario.sources:
            if source.made_early or not source.positioned:
                self.world.tables[source.table] = Table(positioned=source.positioned)
        self.scenario = scenario
        self.runtime = ModelRuntime(self.world)
        self.lake = ModelLake(self.world)
        self.runner = ModelRunner(self.world)
        self.steps = [d for d in scenario.definitions if d.processor is Processor.STEP]
        self.reloads = [d for d in scenario.definitions if d.processor is Processor.RELOAD]
        self._processes = 0
        self._offsets: dict[str, Offset] = {}
        self._plan: Plan | None = None
        self._promised: dict[tuple[str, Position], frozenset[Row]] = {}

    def play(self) -> None:
        for move in self.scenario.moves:
            self.world.advance(move.wait)
            self.run(move)
            self.check()
        self.close()

    def close(self) -> None:
        """Let the writers finish, and run everything once more: then no row may be missing."""
        self.world.advance(max(self.world.last_arrival - self.world.now, 0) + 1)
        for source in self.scenario.sources:
            if source.positioned and source.delay is None:
                self.world.land(source.table, [Row(END, 0, f"{CLOSING} {source.table}")])
            self.world.tables.setdefault(source.table, Table())
        self.world.advance(2 * END)
        everything = frozenset(d.topic for d in (*self.steps, *self.reloads))
        self.run(Move(0, everything))
        self.check()
        for definition in self.steps:
            assert self._of(definition) == Counter(self._all_rows(definition.topic))
        for definition in self.reloads:
            self._check_reload(definition)
        assert not [offset for offset in self.store.offsets.all().values() if offset.hostid]
        self._check_log()

    def run(self, move: Move) -> None:
        self._processes += 1
        holders = ModelHolders(self.world, f"process-{self._processes}")
        self.world.dies_in = move.dies_in
        try:
            report = self._foreground(holders).run(move.topics)
        except Died:
            self.world.dead.add(holders.me)
        else:
            self._check_report(report)
        finally:
            self.world.dies_in = None

    def _foreground(self, holders: ModelHolders) -> Foreground:
        lookout = Lookout(self.definitions, self.store, self.lake, holders, self.runtime)
        runners = {Processor.STEP: self.runner, Processor.RELOAD: self.runner}
        executor = Executor(self.store, self.lake, runners, holders, self.runtime)
        return Foreground(lookout, executor, self.store, self.runtime, Silent())

    def _check_report(self, report: Report) -> None:
        bad = [each for each in report.executions if each.state is not ExecutionState.FINISHED]
        assert not bad

    def check(self) -> None:
        for definition in self.steps:
            self._check_step(definition)
        self._check_offsets()
        holders = ModelHolders(self.world, "nobody")
        lookout = Lookout(self.definitions, self.store, self.lake, holders, self.runtime)
        self._check_plan(lookout.plan(eager=True))
        self._check_witnesses()

    def _check_step(self, definition: Definition) -> None:
        """The table holds what the rows up to `last` give, each once, and nothing above."""
        offset = self.store.offsets.get(definition.topic) or Offset(definition.topic, START)
        base = self._rows(definition.base)
        wanted = Counter(transformed(definition, (row for row in base if row.at <= offset.last)))
        found = self._of(definition)
        doubled = [row for row, times in found.items() if times > 1]
        if doubled:
            raise Doubled(doubled)
        if found == wanted:
            return
        # Killed after the write, before the commit: the open block is in as well, all of it.
        assert offset.block is not None
        block = offset.block
        assert block.last == offset.last
        inside = [row for row in base if block.last < row.at <= block.next]
        assert found == wanted + Counter(transformed(definition, inside))

    def _check_reload(self, definition: Definition) -> None:
        read = [row for name in definition.depends_on for row in self._rows(name)]
        assert self._of(definition) == Counter(transformed(definition, read))

    def _check_offsets(self) -> None:
        """Positions and complete_to only grow, a declared block stays as it is."""
        offsets = dict(self.store.offsets.all())
        for topic, known in self._offsets.items():
            now = offsets[topic]
            assert now.last >= known.last
            assert now.complete_to >= known.complete_to
            assert now.state is not OffsetState.STOPPED
            if known.block is not None and now.seq == known.seq:
                assert now.block == known.block
        self._offsets = offsets

    def _check_plan(self, plan: Plan) -> None:
        """C and F of every table never fall, and no row appears below them any more."""
        for table, state in plan.tables.items():
            if not state.exists or not state.positioned:
                continue
            known = self._plan.tables.get(table) if self._plan else None
            if known and known.exists and not self._stands_on_reload(table):
                assert state.complete_to >= known.complete_to
                assert state.frontier >= known.frontier
            for at in (Position(state.complete_to, -1), state.frontier):
                if at == state.frontier and self._is_reload(table):
                    continue
                self._promised.setdefault((table, at), self._upto(table, at))
        for (table, at), rows in self._promised.items():
            assert self._upto(table, at) == rows, (table, at)
        self._plan = plan

    def _check_witnesses(self) -> None:
        """Every table that a load waited for was complete up to the load's rows."""
        for seen in self.runner.witnesses:
            now = frozenset(row for row in self._rows(seen.table) if row.pos <= seen.upto)
            assert now == seen.rows, seen

    def _check_log(self) -> None:
        """Each start has one end, in the dataset as in the executions."""
        starts: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        for flow in self.store.datasets.flows():
            for entity in self.store.datasets.entities(flow):
                counted = starts if entity["event_type"] == "task-started" else ends
                counted[entity["task_instance"]] += 1
        assert set(starts.values()) <= {1}
        assert starts == ends
        running = self.store.executions.list(state=ExecutionState.RUNNING)
        assert not running

    def _rows(self, table: str) -> list[Row]:
        return self.world.tables.get(table, Table()).rows()

    def _of(self, definition: Definition) -> Counter[Row]:
        rows = self._rows(definition.table)
        return Counter(row for row in rows if row.topic == definition.topic)

    def _upto(self, table: str, at: Position) -> frozenset[Row]:
        return frozenset(row for row in self._rows(table) if row.at <= at)

    def _all_rows(self, topic: str) -> list[Row]:
        """Give what a topic's table must hold in the end, by one pass over all that was landed."""
        definition = self.definitions[topic]
        base = [d for d in self.steps if d.table == definition.base]
        if base:
            rows = [row for d in base for row in self._all_rows(d.topic)]
        else:
            rows = self._rows(definition.base)
        bound = min([2 * END, *map(self._closed_at, definition.depends_on[1:])])
        return transformed(definition, (row for row in rows if row.pos < bound))

    def _closed_at(self, table: str) -> int:
        """A table that stands on a source in order is complete up to that one's last row."""
        source = self.definitions.get(table)
        if source is not None and source.processor is Processor.SOURCE:
            in_order = source.delay is None and self.world.tables[table].positioned
            return END if in_order else 2 * END
        builders = [d for d in (*self.steps, *self.reloads) if d.table == table]
        return min(self._closed_at(name) for d in builders for name in d.depends_on)

    def _is_reload(self, table: str) -> bool:
        return any(d.table == table for d in self.reloads)

    def _stands_on_reload(self, table: str) -> bool:
        """A Reload's C is known again only after its next load, when something changed."""
        if self._is_reload(table):
            return True
        builders = [d for d in self.steps if d.table == table]
        return any(self._stands_on_reload(name) for d in builders for name in d.depends_on)


def _empty(connection: Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        connection.execute(delete(table))


@given(scenario=scenarios(deadly=False))
@examples(60)
def test_tables_equal_one_big_insert(scenario: Scenario, store: SqlStore) -> None:
    Play(scenario, store).play()


@given(scenario=scenarios(deadly=True))
@examples(60)
def test_tables_equal_one_big_insert_whoever_dies(scenario: Scenario, store: SqlStore) -> None:
    play_deadly(Play(scenario, store))


def play_deadly(play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor_module, "crashpoint", play.world.live_on)
        play.play()
