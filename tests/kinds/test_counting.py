"""The kind that counts, run by hand over a lake in memory: what a checkpoint is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.property.lake import ModelHolders, ModelRuntime, Row, Silent, Table, World
from tidegate.control.executor import Executor
from tidegate.control.foreground import Foreground
from tidegate.control.slot import NoReporter
from tidegate.errors import LakeAway, SetupError, TooManyFail
from tidegate.model.execution import ExecutionState, Landed
from tidegate.model.instances import FOR_ALL
from tidegate.model.position import OffsetState, Position
from tidegate.ports.kinds import Report
from tidegate.ports.outside import Batch, LandedBatch, Recorded
from tidegate.store import SqlStore, open_store

from .counting import KIND, CountDefinition, CountPlanner, CountRunner

BEGIN = 1_700_000_000_000
FRUIT = CountDefinition("count-fruit", "stage.fruit", {"apples": 5, "pears": 2}, 1, 3)
PAUSE_AFTER = 3


class MemoryLanding:
    """Implements `ports.outside.Landing` over tables in memory."""

    def __init__(self, world: World) -> None:
        self._world = world

    def pos_for(self, table: str) -> int:
        rows = self._world.tables.get(table, Table()).rows()
        return max((self._world.now, *(row.pos + 1 for row in rows)))

    def land(self, batch: Batch, rows: pa.Table) -> LandedBatch:
        table = self._world.tables.setdefault(batch.table, Table())
        skipped = table.transactions.get(batch.writer, Recorded(0)).seq >= batch.seq
        if not skipped:
            made = [
                Row(batch.pos, id, f"{row['thing']} {row['number']}")
                for id, row in enumerate(rows.to_pylist())
            ]
            table.commit(made, "exact")
            table.transactions[batch.writer] = Recorded(batch.seq, version=table.version)
        last = Position(batch.pos, rows.num_rows - 1)
        landed = Landed(batch.table, last, batch.complete_to, table.version)
        return LandedBatch(rows.num_rows, landed, skipped)


@pytest.fixture
def world() -> World:
    return World(BEGIN, ())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    kinds = {KIND: CountDefinition.from_dict}
    with closing(open_store(f"sqlite:///{tmp_path}/store.db", kinds)) as opened:
        opened.definitions.apply([FRUIT], (), "test", BEGIN)
        yield opened


Run = Callable[..., Report]


@pytest.fixture
def run(store: SqlStore, world: World) -> Run:
    """Give a run by hand of everything that is due."""
    runtime = ModelRuntime(world)

    def run(before_block: Callable[[str], None] = lambda _: None) -> Report:
        runner = CountRunner(MemoryLanding(world), before_block=before_block)
        executor = Executor(
            store,
            {KIND: runner},
            ModelHolders(world, "me"),
            runtime,
            NoReporter(),
            PAUSE_AFTER,
            lambda: True,
            FOR_ALL,
        )
        planner = CountPlanner(store, runtime)
        return Foreground([planner], executor, Silent(), lambda: None).run({FRUIT.name})

    return run


def test_blocks_of_one_execution_are_committed_one_by_one(
    store: SqlStore, world: World, run: Run
) -> None:
    report = run()
    assert [(one.state, one.rows) for one in report.executions] == [
        (ExecutionState.FINISHED, 2 + 2 + 1),
        (ExecutionState.FINISHED, 1 + 1),
    ]
    assert [one.block.seq for one in store.journal.blocks(FRUIT.name)] == [1, 2, 3, 4, 5]
    rows = world.tables[FRUIT.table].rows()
    assert [row.key for row in sorted(rows, key=lambda row: row.at)] == [
        *("apples 1", "pears 1", "apples 2", "pears 2", "apples 3", "apples 4", "apples 5")
    ]
    assert report.not_due == {FRUIT.name: "everything is counted"}


def test_how_far_the_table_is_moves_with_each_block(store: SqlStore, run: Run) -> None:
    run()
    counted, landed = (store.offsets.get(name) for name in (FRUIT.name, FRUIT.table))
    assert counted is not None
    assert landed is not None
    assert landed.last.pos == counted.last["pos"] == landed.complete_to
    assert (landed.state, landed.processor) == (OffsetState.DONE, "source")


class Stumbling:
    """Fails before some blocks, counted from 1."""

    def __init__(self, *blocks: int, over: Exception | None = None) -> None:
        self._blocks = blocks
        self._passed = 0
        self._over = over or RuntimeError("stumbled")

    def __call__(self, _execution_id: str) -> None:
        self._passed += 1
        if self._passed in self._blocks:
            raise self._over


def test_an_outage_never_stops_a_flow_and_is_no_failure(
    store: SqlStore, world: World, run: Run
) -> None:
    since = None
    for tries in range(1, 3 * PAUSE_AFTER):
        (failed,) = run(Stumbling(1, over=LakeAway("no space left"))).executions
        assert (failed.state, failed.comment) == (ExecutionState.FAILED, "away: no space left")
        offset = store.offsets.get(FRUIT.name)
        assert offset is not None
        since = since or offset.away_since
        assert (offset.state, offset.reason) == (OffsetState.AWAY, "no space left")
        assert (offset.failures, offset.away_since) == (0, since)
        assert offset.wait == min(2 ** (tries - 1), 300) * 1000
        assert failed.attempt == tries
    assert not run().failed
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.state, offset.away_since, offset.wait) == (OffsetState.DONE, None, 0)
    assert len(world.tables[FRUIT.table].rows()) == 7


def test_an_outage_after_a_commit_begins_anew(store: SqlStore, run: Run) -> None:
    for _ in range(4):
        run(Stumbling(1, over=LakeAway("no")))
    run(Stumbling(2, over=SetupError("no Java")))
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.seq, offset.reason, offset.wait) == (1, "no Java", 1000)


def test_failures_count_on_across_an_outage(store: SqlStore, run: Run) -> None:
    for _ in range(PAUSE_AFTER - 1):
        run(Stumbling(1))
    run(Stumbling(1, over=LakeAway("no")))
    run(Stumbling(1))
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.state, offset.failures) == (OffsetState.STOPPED, PAUSE_AFTER)
    assert offset.away_since is None


def test_what_breaks_a_limit_is_left_alone_for_minutes(store: SqlStore, run: Run) -> None:
    run(Stumbling(1, over=TooManyFail("5 rows fail")))
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.state, offset.wait) == (OffsetState.FAILED, 300_000)


def test_an_end_that_failed_tells_of_what_was_committed_before_it(
    store: SqlStore, run: Run
) -> None:
    run(Stumbling(3))
    ended = store.datasets.entities(FRUIT.name)[-1]
    assert ended["event_type"] == "task-failed"
    assert ended["entities_succeeded"] == 4


def test_a_failure_keeps_what_was_committed_before_it(store: SqlStore, run: Run) -> None:
    (failed,) = run(Stumbling(3)).executions
    assert (failed.state, failed.rows) == (ExecutionState.FAILED, 2 + 2)
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert offset.block is not None
    assert (offset.seq, offset.block.seq, offset.failures) == (2, 3, 1)
    assert not run().failed
    assert [one.block.seq for one in store.journal.blocks(FRUIT.name)] == [1, 2, 3, 4, 5]


def test_a_checkpoint_ends_a_row_of_failures(store: SqlStore, run: Run) -> None:
    for _ in range(PAUSE_AFTER - 1):
        run(Stumbling(1))
    run(Stumbling(2))
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.state, offset.failures) == (OffsetState.FAILED, 1)
    for _ in range(PAUSE_AFTER - 1):
        run(Stumbling(1))
    offset = store.offsets.get(FRUIT.name)
    assert offset is not None
    assert (offset.state, offset.failures) == (OffsetState.STOPPED, PAUSE_AFTER)
