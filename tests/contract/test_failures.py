"""Rows that fail: pending until the commit, then waiting, written or dead, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.scenes import NOW, TOPIC, block, claimed, commit_of, declared, offset
from tidegate.errors import ClaimLost, WrongUse
from tidegate.model.entities import FailedRow, FailedState
from tidegate.model.position import Position
from tidegate.ports.store import Store

ROW = FailedRow(Position(5, 1), -7, {"x": 1}, "no")


def waiting(store: Store) -> list[FailedRow]:
    return list(store.failures.waiting(TOPIC, 100))


def test_what_a_load_finds_counts_only_with_its_commit(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW, replace(ROW, hash=8)], NOW)
    store.failures.pend(made, 1, [ROW], NOW)
    assert waiting(store) == []
    assert store.failures.counts() == {}
    store.blocks.commit(commit_of(made))
    assert waiting(store) == [ROW]
    assert store.failures.counts() == {TOPIC: {FailedState.WAITING: 1}}
    log = store.datasets.entities(TOPIC)
    assert [entity["event_type"] for entity in log][-2:] == ["write-error", "task-completed"]
    assert log[-1]["entities_failed"] == 1
    assert log[-1]["retry_entities_exist"]
    error = log[-2]
    assert error["_id"] == f"write-error:{error['entity']['_id']}"
    assert (error["retry_attempts"], error["retryable"], error["dead"]) == (0, True, False)


def test_a_retry_moves_a_row_on_once(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW, replace(ROW, hash=8)], NOW)
    store.blocks.commit(commit_of(made))
    following = block(2, last=block(1).next)
    again = declared(store, "e2", following)
    first, second = sorted(waiting(store), key=lambda row: row.hash)
    store.failures.pend(again, 2, [first.brought_in(), second.tried_again("never", 1)], NOW)
    assert len(waiting(store)) == 2
    store.blocks.commit(commit_of(again, following))
    assert waiting(store) == []
    assert store.failures.counts() == {TOPIC: {FailedState.DEAD: 1}}
    by_id = {entity["_id"]: entity for entity in store.datasets.latest(TOPIC)}
    written = by_id[f"write-error:{first.entity_id}"]
    dead = by_id[f"write-error:{second.entity_id}"]
    assert (written["state"], written["retryable"], written["dead"]) == ("written", False, False)
    assert (dead["state"], dead["retryable"], dead["dead"]) == ("dead", False, True)
    assert not by_id["task-completed"]["retry_entities_exist"]


def test_a_retry_by_hand_revives_the_dead(store: Store) -> None:
    made = declared(store, "e1")
    dead = replace(ROW, attempts=9, state=FailedState.DEAD)
    store.failures.pend(made, 1, [dead, replace(ROW, hash=8)], NOW)
    store.blocks.commit(commit_of(made))
    assert store.failures.retry(TOPIC, NOW) == 2
    assert waiting(store) == [replace(ROW, hash=8), ROW]
    assert offset(store).definition_version is None
    with pytest.raises(WrongUse, match="no rows that failed"):
        store.failures.retry("fact.other", NOW)


def test_who_lost_the_topic_keeps_nothing(store: Store) -> None:
    made = claimed(store, "e1")
    store.blocks.unlock(TOPIC, NOW)
    with pytest.raises(ClaimLost):
        store.failures.pend(made, 1, [ROW], NOW)


def test_a_failed_attempt_leaves_nothing_waiting(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW], NOW)
    store.blocks.fail(made, "disk full", "", False, NOW)
    assert waiting(store) == []
    again = claimed(store, "e2")
    store.failures.pend(again, 1, [], NOW)
    store.blocks.commit(commit_of(again))
    assert waiting(store) == []


def failed_end(store: Store) -> tuple[bool, int, int]:
    """Give what the last task-failed says: can anything be retried, what was written, what not."""
    ended = store.datasets.entities(TOPIC)[-1]
    assert ended["event_type"] == "task-failed"
    counts = ("retry_entities_exist", "entities_succeeded", "entities_failed")
    retryable, succeeded, failed = (ended[name] for name in counts)
    return retryable, succeeded, failed


def test_a_failed_attempt_tells_what_it_found_to_fail(store: Store) -> None:
    made = declared(store, "e1")
    rows = [replace(ROW, hash=number) for number in range(10)]
    store.failures.pend(made, 1, [*rows, replace(ROW, hash=11).brought_in()], NOW)
    store.blocks.fail(made, "disk full", "", False, NOW)
    assert failed_end(store) == (True, 0, 10)


def test_a_lost_attempt_tells_it_too(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW], NOW)
    claimed(store, "e2", host="host-2", dead=frozenset({"host-1"}))
    lost = next(one for one in store.datasets.entities(TOPIC) if one["_id"] == "task-failed")
    assert lost["reason_why_stopped"] == "lost: host-1 died"
    assert (lost["retry_entities_exist"], lost["entities_failed"]) == (True, 1)


def test_an_attempt_does_not_tell_what_one_before_it_found(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW], NOW)
    store.blocks.fail(made, "disk full", "", False, NOW)
    store.blocks.fail(claimed(store, "e2", at=NOW + 9), "no Spark", "", False, NOW + 9)
    assert failed_end(store) == (False, 0, 0)


def test_an_attempt_that_fails_tells_of_rows_that_wait(store: Store) -> None:
    made = declared(store, "e1")
    store.failures.pend(made, 1, [ROW], NOW)
    store.blocks.commit(commit_of(made))
    store.blocks.fail(claimed(store, "e2", at=NOW + 9), "no Spark", "", False, NOW + 9)
    assert failed_end(store) == (True, 0, 0)
