"""Tables equal one big INSERT … SELECT, whatever the data, the runs and the kills.

The real store, planner, executor and foreground run over a lake in memory, with a clock of its own.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from sqlalchemy import Connection, delete

from tidegate.control import executor as executor_module
from tidegate.control.executor import Executor
from tidegate.control.foreground import Foreground
from tidegate.control.slot import NoReporter
from tidegate.model.execution import ExecutionState
from tidegate.model.flow import Kind
from tidegate.model.instances import FOR_ALL
from tidegate.model.position import START, Offset, OffsetState, Position
from tidegate.ports.kinds import Report
from tidegate.store import SqlStore, open_store
from tidegate.store.schema import metadata
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.plan import Plan
from tidegate.tables.planner import TablePlanner
from tidegate.tables.rebuild import Shadows
from tidegate.tables.runner import TableRunner

from .lake import (
    Arrival,
    Died,
    Idle,
    ModelHolders,
    ModelLake,
    ModelLoader,
    ModelRuntime,
    Row,
    Silent,
    Table,
    World,
    transformed,
)
from .profile import examples
from .scenarios import BEGIN, CLOSING, END, Move, Scenario, Source, scenarios

KINDS = {Kind.TABLE: TableDefinition.from_dict}


@pytest.fixture(scope="module")
def store() -> Iterator[SqlStore]:
    """One store for all examples, in memory where there is a file system for it."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        closing(open_store(f"sqlite:///{folder}/store.db", KINDS)) as opened,
    ):
        yield opened


class Doubled(AssertionError):
    """A row is in a table twice."""


class Play:
    """Plays a scenario, and after every move holds the tables against what was promised."""

    def __init__(self, scenario: Scenario, store: SqlStore) -> None:
        store.writer.write(_empty)
        self.definitions = {each.topic: each for each in scenario.definitions}
        store.definitions.apply(scenario.definitions, (), "test", BEGIN)
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
        self.loader = ModelLoader(self.world)
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
            self.world.land(source.table, [Row(END, 1, f"{CLOSING} {source.table}")])
        self.world.advance(2 * END)
        everything = frozenset(d.topic for d in (*self.steps, *self.reloads))
        self.run(Move(0, everything))
        self.check()
        for definition in self.steps:
            found = Counter({row: n for row, n in self._of(definition).items() if row.pos < END})
            assert found == Counter(self._all_rows(definition))
        for definition in self.reloads:
            if all(name in self.world.tables for name in definition.depends_on):
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
        store, lake, runtime = self.store, self.lake, self.runtime
        planner = TablePlanner(self.definitions, store, lake, holders, runtime)
        runner = TableRunner(store, lake, self.loader, self.loader, Idle(), runtime)
        executor = Executor(
            store,
            {Kind.TABLE: runner},
            holders,
            runtime,
            NoReporter(),
            pause_after=1000,
            lives=lambda: True,
            lake=FOR_ALL,
        )
        shadows = Shadows(store, lake, holders, runtime)
        return Foreground([planner], executor, Silent(), shadows.sweep)

    def _check_report(self, report: Report) -> None:
        bad = [each for each in report.executions if each.state is not ExecutionState.FINISHED]
        assert not bad

    def check(self) -> None:
        for definition in self.steps:
            self._check_step(definition)
        self._check_offsets()
        holders = ModelHolders(self.world, "nobody")
        planner = TablePlanner(self.definitions, self.store, self.lake, holders, self.runtime)
        self._check_plan(planner.plan(eager=True))
        self._check_witnesses()

    def _check_step(self, definition: TableDefinition) -> None:
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

    def _check_reload(self, definition: TableDefinition) -> None:
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
            there = state.exists or state.by
            if not there or not state.positioned:
                continue
            known = self._plan.tables.get(table) if self._plan else None
            if known and (known.exists or known.by) and not self._stands_on_reload(table):
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
        for seen in self.loader.witnesses:
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

    def _of(self, definition: TableDefinition) -> Counter[Row]:
        rows = self._rows(definition.table)
        return Counter(row for row in rows if row.topic == definition.topic)

    def _upto(self, table: str, at: Position) -> frozenset[Row]:
        return frozenset(row for row in self._rows(table) if row.at <= at)

    def _all_rows(self, definition: TableDefinition) -> list[Row]:
        """Give what a topic's table must hold in the end, by one pass over all that was landed."""
        if not all(name in self.world.tables for name in definition.depends_on):
            return []  # not one row came to a table that it reads: that one is not built
        builders = [d for d in self.steps if d.table == definition.base]
        rows = [row for d in builders for row in self._all_rows(d)]
        landed = rows if builders else self._rows(definition.base)
        return transformed(definition, (row for row in landed if row.pos < END))

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
@examples(40)
def test_tables_equal_one_big_insert(scenario: Scenario, store: SqlStore) -> None:
    Play(scenario, store).play()


@given(scenario=scenarios(deadly=True))
@examples(40)
def test_tables_equal_one_big_insert_whoever_dies(scenario: Scenario, store: SqlStore) -> None:
    play_deadly(Play(scenario, store))


def play_deadly(play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor_module, "crashpoint", play.world.live_on)
        play.play()


# --- One table, killed at each place in turn


def one_table(*moves: Move, maxstep: int = 2) -> Scenario:
    """Give five rows in three blocks, landed before anybody runs."""
    rows = tuple(Row(BEGIN - 9 + number, number, f"row {number}") for number in range(5))
    landed = Source("stage.s", None, True, (Arrival(BEGIN, "stage.s", rows),), made_early=True)
    return Scenario(
        (landed,),
        (
            TableDefinition("stage.s", Processor.SOURCE),
            TableDefinition("fact.t", Processor.STEP, depends_on=("stage.s",), maxstep=maxstep),
        ),
        ("exact",),
        (),
        moves,
    )


ALL = frozenset({"fact.t"})
PLACES = range(42)
"""So many places a run of three blocks passes."""


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_is_killed_at_a_place_loses_and_doubles_nothing(
    store: SqlStore, place: int
) -> None:
    play_deadly(Play(one_table(Move(9, ALL, place), Move(0, ALL, 12), Move(0, ALL)), store))


def test_the_places_are_those_between_all_that_is_written(store: SqlStore) -> None:
    play = Play(one_table(Move(9, ALL)), store)
    passed: list[str] = []
    alive = play.world.live_on

    def live_on(where: str = "") -> None:
        passed.append(where)
        alive(where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play.world, "live_on", live_on)
        patch.setattr(executor_module, "crashpoint", live_on)
        play.world.advance(9)
        play.run(Move(0, ALL))
    assert len(passed) == len(PLACES)
    for point in ("after_claim", "after_declare", "before_commit", "after_commit"):
        assert passed.count(f"block.{point}") == 3
    assert passed.count("step.before_write") == passed.count("step.after_write") == 3


def test_the_commit_leaves_what_the_block_was(store: SqlStore) -> None:
    Play(one_table(Move(9, ALL)), store).play()
    at_the_end = store.offsets.get("fact.t")
    assert at_the_end is not None
    assert (at_the_end.processor, at_the_end.state) == ("Step", OffsetState.DONE)


# --- The test of the test: without the guard, the same plays must fail


@pytest.mark.parametrize("place", PLACES)
def test_only_a_kill_after_the_write_doubles_rows_where_repeats_are_not_skipped(
    store: SqlStore, place: int
) -> None:
    play = Play(one_table(Move(9, ALL, place)), store)
    play.world.skips_repeats = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor_module, "crashpoint", play.world.live_on)
        play.world.advance(9)
        play.run(play.scenario.moves[0])
    if _open_block_is_written(play):
        with pytest.raises(Doubled):
            play.close()
    else:
        play.close()


def _open_block_is_written(play: Play) -> bool:
    offset = play.store.offsets.get("fact.t")
    recorded = play.lake.recorded("fact.t", "fact.t")
    return offset is not None and offset.block is not None and recorded.seq == offset.block.seq


def test_random_plays_find_doubled_rows_where_repeats_are_not_skipped(store: SqlStore) -> None:
    @given(scenario=scenarios(deadly=True))
    @settings(examples(40), phases=[Phase.generate], print_blob=False)
    def play_without_guard(scenario: Scenario) -> None:
        play = Play(scenario, store)
        play.world.skips_repeats = False
        play_deadly(play)

    with pytest.raises(Doubled):
        play_without_guard()
