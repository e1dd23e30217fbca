"""Shadows, stale topics and table care in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.scenes import (
    NOW,
    TOPIC,
    block,
    claimed,
    commit_of,
    committed,
    declared,
    definition,
    offset,
    stored,
)
from tidegate.errors import ClaimLost
from tidegate.model.entities import FailedRow, FailedState
from tidegate.model.execution import Execution, Outcome
from tidegate.model.flow import Operation
from tidegate.model.position import OffsetState, Position
from tidegate.model.records import MadeStale, Mended, Record, TookPlace, Vacuumed
from tidegate.ports.store import Commit, Store
from tidegate.tables.definition import REBUILD, TableDefinition
from tidegate.tables.rebuild import shadow_name, shadow_of

NAME = shadow_name("fact.orders", "0123456789abcdef")
READER = "fact.hours"


def shadow(name: str = NAME) -> TableDefinition:
    plain = replace(definition(), views={}, transforms=())
    return shadow_of(plain, name)


def failed(id: int, state: FailedState = FailedState.WAITING) -> FailedRow:
    return FailedRow(Position(5, id), id, {"id": id}, "bad", state=state)


def load(store: Store, id: str, topic: str, *rows: FailedRow) -> None:
    """Commit a block of a topic that sets these rows aside."""
    made = declared(store, id, topic=topic)
    store.failures.pend(made, 1, rows, NOW)
    store.blocks.commit(commit_of(made))


def publish(store: Store, id: str, record: Record) -> Execution:
    at = offset(store)
    same = replace(block(at.seq + 1, at.last, at.last), complete_to=at.complete_to)
    made = declared(store, id, same)
    store.blocks.commit(commit_of(made, same, records=[record]))
    return made


def maintained(store: Store, made: Execution, note: str, at: int, *records: Record) -> None:
    outcome = Outcome(0, note, records=records)
    store.blocks.commit(Commit(made, offset(store), None, outcome, at))


def test_a_topic_has_one_shadow_that_is_no_part_of_the_project(store: Store) -> None:
    store.definitions.apply([definition()], [], "ann", NOW)
    assert store.rebuilds.of(TOPIC) is None
    store.rebuilds.begin(shadow(), NOW)
    store.rebuilds.begin(shadow(shadow_name("fact.orders", "f" * 12)), NOW)
    found = store.rebuilds.of(TOPIC)
    assert found is not None
    assert (found.topic, found.definition) == (NAME, shadow())
    assert list(store.definitions.current()) == [TOPIC]
    applied = store.definitions.applied(NAME)
    assert applied is not None
    assert applied.version == 1
    assert store.rebuilds.abandoned() == []

    store.rebuilds.abandon(NAME, NOW)
    assert store.rebuilds.of(TOPIC) is None
    assert store.rebuilds.abandoned() == [NAME]


def test_a_published_shadow_leaves_its_failed_rows_and_then_nothing(store: Store) -> None:
    load(store, "e1", TOPIC, failed(1), failed(2))
    store.rebuilds.begin(shadow(), NOW)
    load(store, "e2", NAME, failed(2, FailedState.DEAD), failed(3))
    publish(store, "e3", TookPlace(NAME))
    assert [row.position.id for row in store.failures.waiting(TOPIC, 10)] == [3]
    assert store.failures.counts() == {TOPIC: {FailedState.WAITING: 1, FailedState.DEAD: 1}}
    latest = {e["entity"]["id"]: e["state"] for e in store.datasets.latest(TOPIC) if "entity" in e}
    assert latest == {1: "written", 2: "dead", 3: "waiting"}

    assert store.rebuilds.abandoned() == [NAME]
    store.rebuilds.forget(NAME)
    assert store.rebuilds.abandoned() == []
    assert list(store.offsets.all()) == [TOPIC]
    assert store.datasets.flows() == [TOPIC]
    assert store.journal.blocks(NAME) == []
    assert [row.topic for row in store.journal.etl_log()] == []
    assert [one.id for one in store.executions.list(flow=NAME)] == ["e2"]


def test_a_mark_is_taken_off_only_by_work_that_began_after_it(store: Store) -> None:
    committed(store, "e1")
    committed(store, "e2", topic=READER)
    publish(store, "e3", MadeStale({READER: "stale: one", "fact.never_run": "stale: one"}))
    assert offset(store, READER).stale == "stale: one"
    assert store.offsets.get("fact.never_run") is None
    # Another rebuild comes while the reader is at work: what it read is old again.
    working = declared(store, "e4", block(2), topic=READER)
    publish(store, "e5", MadeStale({READER: "stale: two"}))
    store.blocks.commit(commit_of(working, block(2), records=[Mended("stale: one")]))
    assert offset(store, READER).stale == "stale: two"
    again = declared(store, "e6", block(3), topic=READER)
    store.blocks.commit(commit_of(again, block(3), records=[Mended("stale: two")]))
    assert offset(store, READER).stale == ""


def test_a_shadow_remembers_what_its_topic_was_stale_for(store: Store) -> None:
    committed(store, "e1")
    committed(store, "e2", topic=READER)
    publish(store, "e3", MadeStale({READER: "stale: one"}))
    store.rebuilds.begin(replace(shadow(), rebuilds=READER), NOW)
    found = store.rebuilds.of(READER)
    assert found is not None
    assert found.offset.stale == "stale: one"


def test_an_open_block_may_be_finished_in_another_way_up_to_the_same_end(store: Store) -> None:
    made = declared(store, "e1", operation=Operation.PUBLISH)
    other = replace(block(), versions={NAME: 3}, processor=REBUILD)
    assert store.blocks.declare(made, other, NOW).block == other
    assert offset(store).processor == REBUILD
    with pytest.raises(ClaimLost):
        store.blocks.declare(made, replace(other, next=Position(NOW + 9, 9)), NOW)
    with pytest.raises(ClaimLost):
        store.blocks.declare(made, replace(other, seq=2), NOW)


def test_care_leaves_the_topic_as_it_was(store: Store) -> None:
    committed(store, "e1")
    before = offset(store)
    made = claimed(store, "e2", at=NOW + 5, operation=Operation.MAINTAIN)
    maintained(store, made, "compacted", NOW + 9, Vacuumed())
    assert offset(store) == replace(before, vacuumed_at=NOW + 9)
    assert stored(store, made).comment == "compacted"
    assert stored(store, made).state == "finished"
    made = claimed(store, "e3", at=NOW + 5, operation=Operation.MAINTAIN)
    maintained(store, made, "nothing", NOW + 20)
    assert offset(store).vacuumed_at == NOW + 9


def test_care_that_began_with_an_old_look_hides_no_failure(store: Store) -> None:
    committed(store, "e1")
    before = offset(store)
    store.blocks.fail(claimed(store, "e2"), "broken", "", stop=False, at=NOW)
    made = claimed(store, "e3", operation=Operation.MAINTAIN)
    late = Commit(made, before, None, Outcome(0, "compacted"), NOW)
    store.blocks.commit(late)
    assert offset(store).state is OffsetState.FAILED
