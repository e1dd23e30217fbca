"""History goes when it is old enough; what is open, waits or is asked for again stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.errors import Deposed
from tidegate.model.entities import FailedRow
from tidegate.model.position import Position
from tidegate.model.records import Measures
from tidegate.ports.store import Store

from .scenes import NOW, TOPIC, block, claimed, commit_of, declared, pipe

DAY = 24 * 3600 * 1000
MOST = 100


def built(store: Store, count: int, topic: str = TOPIC) -> None:
    """Commit some blocks, a day apart, each with a row of the ETL log and a stream."""
    last = Position(0, -1)
    for seq in range(1, count + 1):
        at = NOW + seq * DAY
        one = block(seq, last)
        made = declared(store, f"{topic} {seq}", one, topic=topic, at=at)
        measures = Measures(f"query {seq}", 9)
        store.blocks.commit(replace(commit_of(made, one, at=at, measures=measures)))
        last = one.next


def trim_before(store: Store, day: int, most: int = MOST) -> bool:
    return store.retention.trim(NOW + day * DAY, None, most)


def test_old_runs_go_with_all_that_they_left(store: Store) -> None:
    built(store, 6)
    assert not trim_before(store, 4)
    assert [one.id for one in store.executions.list()] == [f"{TOPIC} {n}" for n in (6, 5, 4)]
    assert store.phases.of(f"{TOPIC} 3") == []
    assert len(store.phases.of(f"{TOPIC} 4")) == 4
    assert [one.execution_id for one in store.journal.etl_log()] == [
        f"{TOPIC} {n}" for n in (6, 5, 4)
    ]
    log = store.datasets.entities(TOPIC)
    assert {one["task_instance"] for one in log} == {f"{TOPIC} {n}" for n in (6, 5, 4)}


def test_the_first_block_with_rows_and_the_last_stay(store: Store) -> None:
    built(store, 4)
    trim_before(store, 100)
    assert [row.block.seq for row in store.journal.blocks(TOPIC)] == [1, 4]


def test_the_last_run_of_a_flow_stays_for_its_retry(store: Store) -> None:
    built(store, 3)
    trim_before(store, 100)
    assert [one.id for one in store.executions.list()] == [f"{TOPIC} 3"]


def test_indexes_stay_as_they_are(store: Store) -> None:
    built(store, 3)
    before = {one["_location"]: one for one in store.datasets.entities(TOPIC)}
    trim_before(store, 2)
    left = store.datasets.entities(TOPIC)
    assert [one["_location"] for one in left] == sorted(before)[2:]
    assert all(before[one["_location"]] == one for one in left)
    built(store, 1, topic="fact.other")
    assert store.datasets.entities("fact.other")[0]["_location"] == 0


def test_what_is_open_stays_however_old(store: Store) -> None:
    one = block(1)
    declared(store, "runs", one)
    assert not trim_before(store, 100)
    (open,) = store.executions.open()
    assert open.id == "runs"
    assert [entity["event_type"] for entity in store.datasets.entities(TOPIC)] == ["task-started"]


def test_what_is_told_of_a_row_that_waits_stays_with_it(store: Store) -> None:
    made = declared(store, "fails", block(1))
    row = FailedRow(Position(5, 5), 7, {"id": 5}, "too small")
    store.failures.pend(made, 1, [row], NOW)
    store.blocks.commit(commit_of(made, block(1)))
    claimed(store, "later", at=NOW + DAY)
    trim_before(store, 1)
    kept = [entity["_id"] for entity in store.datasets.entities(TOPIC)]
    assert kept == [f"write-error:{row.entity_id}", "task-started"]


def test_it_goes_in_bites_and_says_whether_there_is_more(store: Store) -> None:
    built(store, 6)
    assert trim_before(store, 100, most=2)
    assert len(store.executions.list()) == 4
    while trim_before(store, 100, most=2):
        continue
    assert len(store.executions.list()) == 1


def test_flows_of_other_kinds_are_trimmed_alike(store: Store) -> None:
    for number in (1, 2):
        made = claimed(store, f"pipe {number}", pipe(), at=NOW + number * DAY)
        store.blocks.hand_back(made, "lost: for the test", NOW + number * DAY)
    trim_before(store, 100)
    assert [one.id for one in store.executions.list()] == ["pipe 2"]


def test_a_leader_whose_term_is_over_forgets_nothing(store: Store) -> None:
    built(store, 3)
    term = store.leadership.take("me", 10_000)
    assert term is not None
    store.leadership.resign(term)
    with pytest.raises(Deposed):
        store.retention.trim(NOW + 100 * DAY, term, MOST)
    assert len(store.executions.list()) == 3
