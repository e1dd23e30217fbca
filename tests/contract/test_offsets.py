"""Offsets by hand and by sight: put, see, unlock, resume."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tidegate.errors import MutexError, UnknownName, WrongUse
from tidegate.model.execution import ExecutionState
from tidegate.model.flow import Operation
from tidegate.model.looks import Look
from tidegate.model.position import GREATEST, START, Offset, OffsetState, Position
from tidegate.ports.store import Store

from .conftest import Open
from .scenes import (
    NOW,
    TOPIC,
    block,
    claimed,
    committed,
    declared,
    events,
    flow_of,
    free,
    last_event,
    offset,
    stored,
)

FULL_ROW = Offset(
    TOPIC,
    Position(GREATEST, GREATEST),
    lane=TOPIC,
    seq=4,
    rows=5,
    run=6,
    processor="Step",
    state=OffsetState.FAILED,
    complete_to=7,
    failures=8,
    reason="why",
    full=True,
    versions={"stage.z": 2, "stage.a": 1},
    definition_version=9,
    block=block(seq=5),
)


def test_an_unknown_topic_has_no_offset(store: Store) -> None:
    assert store.offsets.get(TOPIC) is None
    assert store.offsets.all() == {}


def test_a_row_put_by_hand_reads_back_whole(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    assert store.offsets.all() == {TOPIC: FULL_ROW}
    assert list(offset(store).versions) == ["stage.z", "stage.a"]


def test_putting_overwrites(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    moved = Offset(TOPIC, Position(1, 1), lane="fact.elsewhere")
    store.offsets.put(moved, NOW)
    assert offset(store) == moved


def test_a_row_stays_in_its_lane_where_the_caller_knows_none(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    store.offsets.put(Offset(TOPIC, Position(1, 1)), NOW)
    assert offset(store) == Offset(TOPIC, Position(1, 1), lane=TOPIC)


def test_the_caller_decides_whether_an_open_block_is_kept(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    store.offsets.put(replace(FULL_ROW, rows=99), NOW)
    assert offset(store).block == FULL_ROW.block
    store.offsets.put(replace(FULL_ROW, block=None), NOW)
    assert offset(store).block is None


def test_a_held_topic_is_not_moved_by_hand(store: Store) -> None:
    claimed(store, "e1", host="host-1")
    before = offset(store)
    with pytest.raises(MutexError) as refused:
        store.offsets.put(FULL_ROW, NOW)
    assert (refused.value.topic, refused.value.holder) == (TOPIC, "host-1")
    assert offset(store) == before


def test_a_mutex_cannot_be_taken_by_hand(store: Store) -> None:
    store.offsets.put(replace(FULL_ROW, hostid="me", execution_id="e", claimed_at=1), NOW)
    assert offset(store) == FULL_ROW


def test_a_landed_table_gets_a_row_when_seen(store: Store) -> None:
    store.offsets.see([Look("stage.orders", NOW, newest=Position(5, 6), version=3)], NOW)
    assert offset(store, "stage.orders") == Offset(
        "stage.orders",
        Position(5, 6),
        lane="stage.orders",
        run=NOW,
        processor="source",
        state=OffsetState.DONE,
        versions={"stage.orders": 3},
    )


def test_an_empty_table_and_one_without_positions_stand_at_the_start(store: Store) -> None:
    looks = [
        Look("stage.empty", NOW, version=0),
        Look("stage.plain", NOW, positioned=False, version=1),
    ]
    store.offsets.see(looks, NOW)
    assert {row.last for row in store.offsets.all().values()} == {START}


def test_a_table_that_is_not_there_is_not_remembered(store: Store) -> None:
    store.offsets.see([Look("stage.orders", NOW, exists=False)], NOW)
    store.offsets.see([], NOW)
    assert store.offsets.all() == {}


def test_seeing_never_goes_back(store: Store) -> None:
    table = "stage.orders"
    store.offsets.see([Look(table, NOW, newest=Position(5, 6), version=3)], NOW)
    store.offsets.see([Look(table, NOW, newest=Position(5, 5), version=4)], NOW + 1)
    assert offset(store, table).last == Position(5, 6)
    store.offsets.see([Look(table, NOW, newest=None, version=5)], NOW + 2)
    assert offset(store, table).last == Position(5, 6)
    assert (offset(store, table).versions, offset(store, table).run) == ({table: 5}, NOW + 2)


def test_seeing_the_same_again_writes_nothing(store: Store) -> None:
    look = Look("stage.orders", NOW, newest=Position(5, 6), version=3)
    store.offsets.see([look], NOW)
    store.offsets.see([look.again(NOW + 9)], NOW + 9)
    assert offset(store, "stage.orders").run == NOW


def test_seeing_leaves_complete_to_as_it_is(store: Store) -> None:
    store.offsets.put(Offset("stage.orders", START, complete_to=77), NOW)
    store.offsets.see([Look("stage.orders", NOW, newest=Position(5, 6), version=3)], NOW)
    assert offset(store, "stage.orders").complete_to == 77


def test_many_tables_are_seen_at_once(store: Store) -> None:
    looks = [Look(f"stage.t{n}", NOW, newest=Position(n, n), version=n) for n in range(50)]
    store.offsets.see(looks, NOW)
    assert [store.offsets.all()[f"stage.t{n}"].last for n in range(50)] == [
        Position(n, n) for n in range(50)
    ]


def test_unlock_frees_the_topic_and_ends_its_execution(store: Store) -> None:
    made = declared(store, "e1", host="host-1")
    before = offset(store)
    assert store.blocks.unlock(TOPIC, NOW + 4) == "host-1"
    assert offset(store) == replace(free(before), state=OffsetState.NEW)
    lost = stored(store, made)
    assert (lost.state, lost.finished_at) == (ExecutionState.LOST, NOW + 4)
    assert lost.comment == "unlocked by hand"
    assert events(store) == ["task-started", "task-failed"]
    assert last_event(store)["reason_why_stopped"] == "lost: unlocked by hand"


def test_unlock_leaves_a_topic_with_blocks_as_done(store: Store) -> None:
    committed(store, "e1")
    claimed(store, "e2")
    store.blocks.unlock(TOPIC, NOW)
    assert offset(store).state is OffsetState.DONE


def test_unlocking_a_free_topic_changes_nothing(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    assert store.blocks.unlock(TOPIC, NOW) == ""
    assert offset(store) == FULL_ROW


def test_an_unlocked_topic_can_be_claimed_again(store: Store) -> None:
    claimed(store, "e1")
    store.blocks.unlock(TOPIC, NOW)
    claimed(store, "e2", host="host-2")


def test_an_unknown_topic_is_named(store: Store) -> None:
    with pytest.raises(UnknownName, match=r"no topic fact\.nope"):
        store.blocks.unlock("fact.nope", NOW)
    with pytest.raises(UnknownName, match=r"no topic fact\.nope"):
        store.offsets.resume("fact.nope", NOW)


def test_resume_lets_a_stopped_topic_go_on(store: Store) -> None:
    made = declared(store, "e1")
    store.blocks.fail(made, "r > seq", "", True, NOW)
    before = offset(store)
    store.offsets.resume(TOPIC, NOW)
    assert offset(store) == replace(before, state=OffsetState.NEW, failures=1, reason="")
    assert offset(store).block == block()


def test_a_topic_with_blocks_is_done_after_resume(store: Store) -> None:
    committed(store, "e1")
    store.blocks.fail(claimed(store, "e2"), "no", "", True, NOW)
    store.offsets.resume(TOPIC, NOW)
    assert offset(store).state is OffsetState.DONE


def test_only_a_stopped_topic_is_resumed(store: Store) -> None:
    store.offsets.put(FULL_ROW, NOW)
    with pytest.raises(WrongUse, match="not stopped, its state is FAILED"):
        store.offsets.resume(TOPIC, NOW)


def test_racing_looks_never_take_a_table_back(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(3)]
    for round in range(8):
        gate = threading.Barrier(3)
        table = f"stage.t{round}"

        def see(number: int, gate: threading.Barrier = gate, table: str = table) -> None:
            gate.wait()
            look = Look(table, NOW, newest=Position(3 - number, 0), version=number)
            stores[number].offsets.see([look], NOW)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(see, range(3)))
        assert offset(stores[0], table).last == Position(3, 0)


class TestStamps:
    def test_every_write_of_a_row_gives_it_another_stamp(self, store: Store) -> None:
        seen: list[object] = []

        def stamped() -> None:
            seen.append(store.offsets.stamps()[TOPIC])
            assert len(seen) == len(set(seen))

        # All within one millisecond, as far as the writers' clocks tell.
        store.offsets.put(FULL_ROW, NOW)
        stamped()
        store.offsets.put(replace(FULL_ROW, failures=9, block=None), NOW)
        stamped()
        store.offsets.put(replace(FULL_ROW, seq=0, state=OffsetState.STOPPED, block=None), NOW)
        stamped()
        store.offsets.resume(TOPIC, NOW)
        stamped()
        made = claimed(store, "e-1", operation=Operation.PUBLISH)
        stamped()
        store.blocks.declare(made, block(last=FULL_ROW.last), NOW)
        stamped()
        store.blocks.declare(made, block(last=FULL_ROW.last, processor="FullStep"), NOW)
        stamped()
        store.blocks.fail(made, "no", "", stop=False, at=NOW)
        stamped()

    def test_a_look_at_a_landed_table_does_so_too(self, store: Store) -> None:
        seen = set()
        for version in range(3):
            store.offsets.see([Look("stage.orders", NOW, version=version)], NOW)
            seen.add(store.offsets.stamps()["stage.orders"])
        assert len(seen) == 3

    def test_a_clock_that_is_behind_does_so_too(self, store: Store) -> None:
        store.offsets.put(FULL_ROW, NOW)
        before = store.offsets.stamps()[TOPIC]
        store.offsets.put(replace(FULL_ROW, rows=1), NOW - 60_000)
        assert store.offsets.stamps()[TOPIC] != before

    def test_the_rows_that_are_asked_for_are_read(self, store: Store) -> None:
        other = replace(FULL_ROW, topic="fact.other")
        for row in (FULL_ROW, other):
            store.offsets.put(row, NOW)
        assert store.offsets.some([TOPIC, "fact.none"]) == {TOPIC: FULL_ROW}
        assert store.offsets.some([]) == {}
        many = {TOPIC, *(f"fact.t{number}" for number in range(5_000))}
        assert store.offsets.some(many) == {TOPIC: FULL_ROW}

    def test_a_lane_is_all_that_writes_one_table(self, store: Store) -> None:
        for topic in ("fact.a#x", "fact.a#y", "fact.a:3", "fact.ab"):
            store.offsets.put(replace(FULL_ROW, topic=topic, lane=flow_of(topic).lane), NOW)
        assert {one.topic for one in store.offsets.in_lane("fact.a")} == {
            "fact.a#x",
            "fact.a#y",
            "fact.a:3",
        }
