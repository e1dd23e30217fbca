"""Step 3a and 3c: who gets a topic, who is refused, and how a block is declared."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from tidegate.errors import ClaimLost, MutexError, StoreError
from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.flow import Kind, Operation
from tidegate.model.position import START, Offset, OffsetState, Position
from tidegate.ports.store import Store
from tidegate.store import SqlStore
from tidegate.store.positions import take

from .conftest import Open
from .scenes import (
    NOBODY,
    NOW,
    TOPIC,
    assigned,
    block,
    claimed,
    commit_of,
    committed,
    declared,
    definition,
    events,
    everything,
    execution,
    last_event,
    offset,
    stored,
)

ROUNDS = 12


def test_an_assigned_execution_is_kept_as_it_was_given(store: Store) -> None:
    made = Execution(
        "e1",
        Kind.TABLE,
        "orders",
        TOPIC,
        ExecutionState.ASSIGNED,
        lane="fact.orders",
        operation=Operation.PUBLISH,
        attempt=2,
        retry_of="e0",
        etl_worker="w",
        assigned_at=NOW,
        configuration={"kind": "table", "id": TOPIC},
        term=3,
    )
    store.executions.assign(made)
    assert store.executions.get("e1") == made
    assert store.executions.get("e2") is None


def test_an_execution_is_assigned_once(store: Store) -> None:
    made = assigned(store, "e1")
    with pytest.raises(StoreError, match=r"e1 of fact\.orders is in the store already"):
        store.executions.assign(made)


def test_who_assigns_says_when(store: Store) -> None:
    untimed = Execution("e1", Kind.TABLE, TOPIC, TOPIC, ExecutionState.ASSIGNED)
    with pytest.raises(StoreError, match="no assigned_at"):
        store.executions.assign(untimed)


def test_a_claim_takes_the_mutex_and_starts_the_execution(store: Store) -> None:
    made = assigned(store, "e1")
    taken = store.blocks.claim(made, "host-1", NOBODY, NOW + 5).offset
    assert taken == offset(store)
    assert taken == Offset(
        TOPIC,
        START,
        lane=TOPIC,
        run=NOW + 5,
        state=OffsetState.RUNNING,
        hostid="host-1",
        execution_id="e1",
        claimed_at=NOW + 5,
    )
    running = stored(store, made)
    assert running.state is ExecutionState.RUNNING
    assert (running.accepted_at, running.started_at) == (NOW + 5, NOW + 5)
    assert running.etl_worker == "host-1"


def test_a_claim_keeps_the_worker_that_was_assigned(store: Store) -> None:
    made = replace(execution("e1"), etl_worker="slot-7")
    store.executions.assign(made)
    store.blocks.claim(made, "host-1", NOBODY, NOW)
    assert stored(store, made).etl_worker == "slot-7"


def test_a_claim_tells_the_dataset_with_the_definition_in_force(store: Store) -> None:
    store.definitions.apply([definition()], [], "ann", NOW)
    claimed(store, "e1")
    started = last_event(store)
    assert started["event_type"] == "task-started"
    assert started["task_instance"] == "e1"
    assert started["source"]["depends_on"] == ["stage.orders", "stage.customers"]
    assert started["sink"]["table"] == TOPIC


def test_a_topic_without_definition_starts_with_empty_source_and_sink(store: Store) -> None:
    claimed(store, "e1")
    assert (last_event(store)["source"], last_event(store)["sink"]) == ({}, {})


def test_an_execution_that_was_never_assigned_cannot_claim(store: Store) -> None:
    with pytest.raises(ClaimLost, match="no longer assigned"):
        store.blocks.claim(execution("ghost"), "host-1", NOBODY, NOW)
    assert everything(store) == ({}, [], {}, [], {}, {})


def test_an_execution_claims_once(store: Store) -> None:
    made = committed(store, "e1")
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.claim(made, "host-1", NOBODY, NOW)
    assert everything(store) == before


def test_a_held_topic_is_refused_and_the_execution_rejected(store: Store) -> None:
    claimed(store, "e1", host="host-1")
    held = offset(store)
    late = assigned(store, "e2")
    with pytest.raises(MutexError) as refused:
        store.blocks.claim(late, "host-2", NOBODY, NOW + 9)
    assert (refused.value.topic, refused.value.holder) == (TOPIC, "host-1")
    assert refused.value.since == "2023-11-14T22:13:20.000Z"
    rejected = stored(store, late)
    assert rejected.state is ExecutionState.REJECTED
    assert rejected.finished_at == NOW + 9
    assert "host-1" in rejected.comment
    assert offset(store) == held
    assert events(store) == ["task-started"]


def test_a_topic_never_runs_twice_at_once_not_even_on_one_host(store: Store) -> None:
    claimed(store, "e1", host="host-1")
    with pytest.raises(MutexError):
        store.blocks.claim(assigned(store, "e2"), "host-1", NOBODY, NOW)


def test_a_refused_execution_that_had_ended_stays_as_it_was(store: Store) -> None:
    ended = committed(store, "e1")
    claimed(store, "e2", host="host-2")
    with pytest.raises(ClaimLost):
        store.blocks.claim(ended, "host-1", NOBODY, NOW)
    assert stored(store, ended).state is ExecutionState.FINISHED


def test_another_process_is_kept_out_of_the_lane(store: Store) -> None:
    claimed(store, "e1", topic="fact.o#a", host="host-1")
    with pytest.raises(MutexError) as refused:
        store.blocks.claim(assigned(store, "e2", "fact.o#b"), "host-2", NOBODY, NOW)
    assert (refused.value.topic, refused.value.holder) == ("fact.o#a", "host-1")
    assert offset(store, "fact.o#b").state is OffsetState.NEW
    assert events(store, "fact.o#b") == []


def test_one_process_may_run_topics_of_a_table_side_by_side(store: Store) -> None:
    for number, topic in enumerate(["fact.o#a", "fact.o#b", "fact.o:0", "fact.o#a:1"]):
        claimed(store, f"e{number}", topic=topic, host="host-1")
    assert {row.hostid for row in store.offsets.all().values()} == {"host-1"}


def test_other_tables_are_other_lanes(store: Store) -> None:
    claimed(store, "e1", topic="fact.o#a", host="host-1")
    claimed(store, "e2", topic="fact.other", host="host-2")
    claimed(store, "e3", topic="fact.o2", host="host-3")


def test_a_dead_process_in_the_lane_is_passed_by(store: Store) -> None:
    dead = claimed(store, "e1", topic="fact.o#a", host="host-1")
    claimed(store, "e2", topic="fact.o#b", host="host-2", dead=frozenset({"host-1"}))
    assert stored(store, dead).state is ExecutionState.RUNNING


def test_a_dead_holder_is_taken_over_and_its_execution_ends_as_lost(store: Store) -> None:
    dead = declared(store, "e1", host="host-1")
    heir = assigned(store, "e2")
    taken = store.blocks.claim(heir, "host-2", frozenset({"host-1"}), NOW + 7).offset
    assert (taken.hostid, taken.execution_id, taken.block) == ("host-2", "e2", block())
    lost = stored(store, dead)
    assert (lost.state, lost.finished_at) == (ExecutionState.LOST, NOW + 7)
    assert lost.comment == "lost: host-1 died"
    assert events(store) == ["task-started", "task-failed", "task-started"]
    failed = store.datasets.entities(TOPIC)[1]
    assert failed["reason_why_stopped"] == "lost: host-1 died"
    assert (failed["task_instance"], failed["task_started_location"]) == ("e1", 0)


def test_every_start_has_exactly_one_end(store: Store) -> None:
    first = claimed(store, "e1", host="a")
    second = claimed(store, "e2", host="b", dead=frozenset({"a"}))
    store.blocks.unlock(TOPIC, NOW)
    third = claimed(store, "e3", host="c")
    store.blocks.fail(third, "no", "", False, NOW)
    fourth = claimed(store, "e4", host="c")
    store.blocks.nothing_to_do(fourth, 0, NOW)
    committed(store, "e5")
    for gone in (first, second, third, fourth):
        with pytest.raises(ClaimLost):
            store.blocks.fail(gone, "late", "", False, NOW)
        with pytest.raises(ClaimLost):
            store.blocks.nothing_to_do(gone, 0, NOW)
        with pytest.raises(ClaimLost):
            store.blocks.commit(commit_of(gone))
    store.blocks.unlock(TOPIC, NOW)
    entities = store.datasets.entities(TOPIC)
    starts = [e["_location"] for e in entities if e["event_type"] == "task-started"]
    ends = [e["task_started_location"] for e in entities if "end_time" in e]
    assert len(starts) == 5
    assert sorted(ends) == starts


def _race(stores: list[SqlStore], topics: list[str], round: int) -> list[Offset | MutexError]:
    """Let each store claim its topic at the same moment."""
    gate = threading.Barrier(len(stores))

    def run(number: int) -> Offset | MutexError:
        store = stores[number]
        made = assigned(store, f"r{round}-{number}", topics[number])
        gate.wait()
        try:
            return store.blocks.claim(made, f"host-{number}", NOBODY, NOW).offset
        except MutexError as refused:
            return refused

    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(run, range(len(stores))))


def test_of_racing_claims_exactly_one_wins(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(3)]
    for round in range(ROUNDS):
        topic = f"fact.t{round}"
        results = _race(stores, [topic] * 3, round)
        winners = [result for result in results if isinstance(result, Offset)]
        assert len(winners) == 1
        assert offset(stores[0], topic) == winners[0]
        assert events(stores[0], topic) == ["task-started"]
    states = [made.state for made in stores[0].executions.list()]
    assert states.count(ExecutionState.RUNNING) == ROUNDS
    assert states.count(ExecutionState.REJECTED) == 2 * ROUNDS


def test_of_racing_claims_in_one_lane_exactly_one_wins(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(3)]
    for round in range(ROUNDS):
        table = f"fact.t{round}"
        results = _race(stores, [f"{table}#a", f"{table}#b", f"{table}:0"], round)
        assert sum(isinstance(result, Offset) for result in results) == 1


def test_of_racing_heirs_of_a_dead_holder_exactly_one_wins(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(2)]
    dead = frozenset({"dead"})

    def take_over(number: int) -> bool:
        made = assigned(stores[number], f"heir-{number}")
        gate.wait()
        try:
            stores[number].blocks.claim(made, f"host-{number}", dead, NOW)
        except MutexError:
            return False
        return True

    claimed(stores[0], "e1", host="dead")
    gate = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(take_over, range(2))) == [False, True]
    assert events(stores[0]) == ["task-started", "task-failed", "task-started"]


def test_a_mutex_that_changed_since_it_was_read_is_not_taken(store: SqlStore) -> None:
    claimed(store, "e1", host="host-1")
    late = assigned(store, "e2")
    assert store.writer.write(lambda c: take(c, late, "host-2", "", NOW)) is None
    assert store.writer.write(lambda c: take(c, late, "host-2", "host-0", NOW)) is None
    assert offset(store).execution_id == "e1"


def test_a_mutex_freed_with_sql_is_lost_to_its_holder(store: SqlStore) -> None:
    gone = declared(store, "e1")
    store.writer.write(lambda c: c.execute(text("UPDATE offsets SET hostid = ''")))
    with pytest.raises(ClaimLost):
        store.blocks.commit(commit_of(gone))
    claimed(store, "e2", host="host-2")
    assert stored(store, gone).comment == "lost: its mutex was freed in the database"
    assert events(store) == ["task-started", "task-failed", "task-started"]


def test_a_declared_block_stands_in_the_row(store: Store) -> None:
    made = claimed(store, "e1")
    full = block(processor="FullStep")
    given = store.blocks.declare(made, full, NOW + 1)
    assert given == offset(store)
    assert (given.block, given.processor) == (full, "FullStep")
    assert (given.last, given.seq, given.next) == (START, 0, block().next)
    assert list(given.block.versions if given.block else ()) == ["stage.orders", "stage.customers"]


def test_a_block_keeps_the_start_it_was_declared_with(store: Store) -> None:
    made = claimed(store, "e1")
    odd = block(seq=8, last=Position(3, 3), processor="Reload")
    assert store.blocks.declare(made, odd, NOW).block == odd


def test_a_declared_block_is_never_declared_again(store: Store) -> None:
    made = declared(store, "e1")
    with pytest.raises(ClaimLost):
        store.blocks.declare(made, block(next=Position(NOW + 99, 1)), NOW)
    assert offset(store).block == block()


def test_only_the_holder_declares(store: Store) -> None:
    gone = claimed(store, "e1", host="host-1")
    claimed(store, "e2", host="host-2", dead=frozenset({"host-1"}))
    with pytest.raises(ClaimLost, match="no longer in the hands of execution e1"):
        store.blocks.declare(gone, block(), NOW)
    assert offset(store).block is None


def test_an_unlocked_topic_takes_no_block(store: Store) -> None:
    made = claimed(store, "e1")
    store.blocks.unlock(TOPIC, NOW)
    with pytest.raises(ClaimLost):
        store.blocks.declare(made, block(), NOW)


def test_what_was_assigned_and_never_claimed_ends_with_the_next_claim(store: Store) -> None:
    assigned(store, "e-died-early", at=NOW - 61_000)
    other = assigned(store, "e-other", "fact.other", at=NOW - 61_000)
    claimed(store, "e-2")
    ended = store.executions.get("e-died-early")
    assert ended is not None
    assert (ended.state, ended.finished_at) == (ExecutionState.LOST, NOW)
    assert "never claimed" in ended.comment
    waiting = store.executions.get(other.id)
    assert waiting is not None
    assert waiting.state is ExecutionState.ASSIGNED
