"""Step 6 and the other ends: commit, nothing to do, failure, and what they never do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.errors import ClaimLost, StoreError
from tidegate.model.duration import DAY
from tidegate.model.execution import ExecutionState
from tidegate.model.instances import Pace
from tidegate.model.position import START, Block, OffsetState, Position
from tidegate.model.records import Measures
from tidegate.ports.store import BlockRow, LogRow, Store

from .scenes import (
    NOW,
    TOPIC,
    block,
    claimed,
    commit_of,
    committed,
    declared,
    events,
    everything,
    free,
    kept,
    last_event,
    moved,
    offset,
    stored,
)

MEASURES = Measures("q1", 9, max_id=4, min_ts=NOW - 2500, max_ts=NOW, nulls={"amount": 2})


def test_a_commit_moves_the_topic_and_frees_it(store: Store) -> None:
    made = declared(store, "e1")
    commit = commit_of(made, at=NOW + 3)
    store.blocks.commit(commit)
    assert offset(store) == moved(commit)
    assert offset(store).block is None


def test_a_commit_frees_the_topic_whatever_the_row_says(store: Store) -> None:
    made = declared(store, "e1")
    commit = commit_of(made)
    held = replace(commit.offset, hostid="host-1", execution_id="e1", claimed_at=1, block=block())
    store.blocks.commit(replace(commit, offset=held))
    assert offset(store) == moved(commit)


def test_a_commit_finishes_the_execution(store: Store) -> None:
    made = declared(store, "e1")
    store.blocks.commit(commit_of(made, at=NOW + 3))
    finished = stored(store, made)
    assert finished.state is ExecutionState.FINISHED
    assert (finished.finished_at, finished.rows, finished.comment) == (NOW + 3, 9, "a note")


def test_a_commit_ends_the_task_in_the_dataset(store: Store) -> None:
    committed(store, "e0")
    second = block(seq=2, last=block().next)
    committed(store, "e1", second)
    completed = last_event(store)
    assert completed["event_type"] == "task-completed"
    assert (completed["entities_succeeded"], completed["entities_failed"]) == (9, 0)
    assert (completed["task_instance"], completed["task_started_location"]) == ("e1", 2)
    assert completed["start_time"] == completed["end_time"] == "2023-11-14T22:13:20.000000Z"


def test_a_commit_leaves_its_block(store: Store) -> None:
    made = declared(store, "e1")
    store.blocks.commit(commit_of(made, at=NOW + 3))
    assert store.journal.blocks(TOPIC) == [BlockRow(TOPIC, kept(block()), 7, 5, "e1", NOW + 3)]
    assert store.journal.blocks("fact.other") == []


def test_a_block_that_read_no_listed_table_has_no_base_version(store: Store) -> None:
    bare = replace(block(), versions={})
    committed(store, "e1", bare)
    assert store.journal.blocks(TOPIC)[0].base_version is None


def test_blocks_come_oldest_first(store: Store) -> None:
    blocks = [block(seq=1)]
    for seq in (2, 3):
        blocks.append(block(seq=seq, last=blocks[-1].next))
    for number, one in enumerate(blocks):
        committed(store, f"e{number}", one)
    assert [row.block for row in store.journal.blocks(TOPIC)] == [kept(one) for one in blocks]


def test_a_number_given_out_again_by_hand_does_not_stop_a_commit(store: Store) -> None:
    committed(store, "e1")
    store.offsets.put(replace(offset(store), last=START, seq=0, complete_to=0), NOW)
    committed(store, "e2")
    assert [row.execution_id for row in store.journal.blocks(TOPIC)] == ["e1", "e2"]


def test_measures_are_logged_newest_first(store: Store) -> None:
    for seq in (1, 2):
        one = block(seq=seq)
        made = declared(store, f"e{seq}", one)
        measured = replace(MEASURES, query_id=f"q{seq}")
        store.blocks.commit(commit_of(made, one, at=NOW + seq, measures=measured))
    newest, oldest = store.journal.etl_log(TOPIC)
    assert newest == LogRow(TOPIC, NOW + 2, replace(MEASURES, query_id="q2"), "e2")
    assert newest.max_lag == pytest.approx(2.502)
    assert oldest.measures.query_id == "q1"
    assert store.journal.etl_log(limit=1) == [newest]
    assert store.journal.etl_log("fact.other") == []


def test_what_was_not_measured_stays_unknown(store: Store) -> None:
    made = declared(store, "e1")
    store.blocks.commit(commit_of(made, measures=Measures("q1", 9)))
    assert store.journal.etl_log() == [LogRow(TOPIC, NOW, Measures("q1", 9), "e1")]


def test_a_load_without_measures_leaves_no_log_row(store: Store) -> None:
    committed(store, "e1")
    assert store.journal.etl_log() == []


def test_log_rows_are_dropped_after_ninety_days(store: Store) -> None:
    for seq, at in ((1, NOW), (2, NOW + 5 * DAY), (100, NOW + 91 * DAY)):
        one = block(seq=seq)
        made = declared(store, f"e{seq}", one)
        store.blocks.commit(commit_of(made, one, at=at, measures=MEASURES))
    store.retention.trim(NOW + 91 * DAY - Pace().keep, None, 100)
    assert [row.execution_id for row in store.journal.etl_log()] == ["e100", "e2"]


def test_a_commit_after_losing_the_topic_writes_nothing(store: Store) -> None:
    gone = declared(store, "e1", host="host-1")
    claimed(store, "e2", host="host-2", dead=frozenset({"host-1"}))
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.commit(commit_of(gone, measures=MEASURES))
    assert everything(store) == before


def test_a_commit_after_an_unlock_writes_nothing(store: Store) -> None:
    gone = declared(store, "e1")
    store.blocks.unlock(TOPIC, NOW)
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.commit(commit_of(gone))
    assert everything(store) == before


def test_a_commit_is_not_repeated(store: Store) -> None:
    made = committed(store, "e1")
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.commit(commit_of(made))
    assert everything(store) == before


@pytest.mark.parametrize(
    "other", [block(seq=2, next=block().next), block(next=Position(NOW + 2, 2))]
)
def test_only_the_declared_block_is_committed(store: Store, other: Block) -> None:
    made = declared(store, "e1")
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.commit(replace(commit_of(made), block=other))
    assert everything(store) == before


def test_a_block_that_was_not_declared_is_not_committed(store: Store) -> None:
    made = claimed(store, "e1")
    with pytest.raises(ClaimLost):
        store.blocks.commit(commit_of(made))


@pytest.mark.parametrize(
    ("last", "complete_to"), [(Position(NOW + 1, 0), NOW + 2), (Position(NOW + 2, 2), NOW)]
)
def test_neither_last_nor_complete_to_go_back(
    store: Store, last: Position, complete_to: int
) -> None:
    committed(store, "e1")
    back = replace(block(seq=2, last=block().next, next=last), complete_to=complete_to)
    made = declared(store, "e2", back)
    before = everything(store)
    with pytest.raises(StoreError, match=r"fact\.orders would go back"):
        store.blocks.commit(commit_of(made, back))
    assert everything(store) == before


def test_nothing_to_do_frees_the_topic_and_moves_complete_to(store: Store) -> None:
    committed(store, "e1")
    failing = claimed(store, "e2")
    store.blocks.fail(failing, "no", "", False, NOW)
    before = offset(store)
    made = claimed(store, "e3", at=NOW + 5)
    store.blocks.nothing_to_do(made, NOW + 50, NOW + 6)
    assert offset(store) == replace(
        before,
        state=OffsetState.NOJOBS,
        complete_to=NOW + 50,
        failures=0,
        reason="",
        full=False,
        run=NOW + 6,
    )
    finished = stored(store, made)
    assert finished.state is ExecutionState.FINISHED
    assert (finished.rows, finished.comment) == (0, "nothing to do")
    assert last_event(store)["event_type"] == "task-completed"
    assert last_event(store)["entities_succeeded"] == 0


def test_nothing_to_do_never_lowers_complete_to(store: Store) -> None:
    committed(store, "e1")
    made = claimed(store, "e2")
    store.blocks.nothing_to_do(made, 5, NOW)
    assert offset(store).complete_to == block().complete_to


def test_nothing_to_do_does_not_forget_a_declared_block(store: Store) -> None:
    made = declared(store, "e1")
    with pytest.raises(ClaimLost):
        store.blocks.nothing_to_do(made, NOW, NOW)
    assert offset(store).block == block()


@pytest.mark.parametrize(("stop", "state"), [(False, "FAILED"), (True, "STOPPED")])
def test_a_failure_frees_the_topic_and_keeps_its_block(
    store: Store, stop: bool, state: str
) -> None:
    made = declared(store, "e1")
    before = offset(store)
    store.blocks.fail(made, "cast failed", "Traceback …", stop, NOW + 9)
    assert offset(store) == replace(
        free(before), state=OffsetState(state), failures=1, reason="cast failed", run=NOW + 9
    )
    assert offset(store).block == block()
    failed = stored(store, made)
    assert failed.state is ExecutionState.FAILED
    assert (failed.finished_at, failed.comment) == (NOW + 9, "cast failed")
    assert last_event(store)["event_type"] == "task-failed"
    assert last_event(store)["reason_why_stopped"] == "cast failed\nTraceback …"


def test_an_outage_is_no_failure_and_lasts_until_a_commit(store: Store) -> None:
    store.blocks.fail(declared(store, "e1"), "no", "", False, NOW)
    store.blocks.fail(claimed(store, "e2"), "disk full", "", False, NOW + 1, wait=9, away=True)
    away = offset(store)
    assert (away.state, away.reason, away.failures) == (OffsetState.AWAY, "disk full", 1)
    assert (away.away_since, away.wait, away.run) == (NOW + 1, 9, NOW + 1)
    assert away.block == block()
    assert last_event(store)["reason_why_stopped"] == "away: disk full"
    retry = claimed(store, "e3", at=NOW + 5)
    store.blocks.fail(retry, "still full", "", False, NOW + 9, wait=18, away=True)
    again = offset(store)
    assert (again.away_since, again.wait, again.reason) == (NOW + 1, 18, "still full")
    assert stored(store, retry).comment == "away: still full"
    store.blocks.commit(commit_of(claimed(store, "e4")))
    over = offset(store)
    assert (over.away_since, over.wait, over.reason, over.failures) == (None, 0, "", 0)


def test_a_failure_ends_an_outage(store: Store) -> None:
    store.blocks.fail(claimed(store, "e1"), "disk full", "", False, NOW, wait=9, away=True)
    store.blocks.fail(claimed(store, "e2"), "no", "", False, NOW + 1)
    assert (offset(store).away_since, offset(store).wait, offset(store).failures) == (None, 0, 1)


def test_nothing_to_do_and_resume_end_an_outage(store: Store) -> None:
    store.blocks.fail(claimed(store, "e1"), "disk full", "", False, NOW, wait=9, away=True)
    store.blocks.nothing_to_do(claimed(store, "e2"), NOW, NOW)
    assert (offset(store).away_since, offset(store).wait) == (None, 0)
    store.blocks.fail(claimed(store, "e3"), "many", "", True, NOW, wait=9)
    assert offset(store).wait == 9
    store.offsets.resume(TOPIC, NOW)
    assert offset(store).wait == 0


def test_what_was_handed_back_in_an_outage_stays_in_it(store: Store) -> None:
    store.blocks.fail(claimed(store, "e1"), "disk full", "", False, NOW, wait=9, away=True)
    store.blocks.hand_back(claimed(store, "e2"), "lost: Spark is gone", NOW + 3)
    assert (offset(store).away_since, offset(store).wait) == (NOW, 9)


def test_a_failure_without_trace_gives_the_reason_alone(store: Store) -> None:
    store.blocks.fail(claimed(store, "e1"), "no", "", False, NOW)
    assert last_event(store)["reason_why_stopped"] == "no"


def test_failures_in_a_row_are_counted(store: Store) -> None:
    for number in range(3):
        store.blocks.fail(claimed(store, f"e{number}"), "no", "", False, NOW)
    assert offset(store).failures == 3


def test_a_failure_is_stored_whatever_its_text_holds(store: Store) -> None:
    made = claimed(store, "e1")
    store.blocks.fail(made, "bad \0 byte", "bad \udc80 name", False, NOW)
    assert stored(store, made).comment == "bad � byte"
    assert last_event(store)["reason_why_stopped"] == "bad � byte\nbad ? name"


def test_a_failure_after_losing_the_topic_writes_nothing(store: Store) -> None:
    gone = claimed(store, "e1", host="host-1")
    claimed(store, "e2", host="host-2", dead=frozenset({"host-1"}))
    before = everything(store)
    with pytest.raises(ClaimLost):
        store.blocks.fail(gone, "late", "", True, NOW)
    assert everything(store) == before


def test_who_is_cut_off_does_not_claim_that_nothing_was_written(store: Store) -> None:
    gone = declared(store, "e1", host="host-1")
    claimed(store, "e2", host="host-2", dead=frozenset({"host-1"}))
    with pytest.raises(ClaimLost, match="nothing was committed; the next run finds what its table"):
        store.blocks.commit(commit_of(gone))


def test_a_retry_finishes_the_block_that_was_declared(store: Store) -> None:
    store.blocks.fail(declared(store, "e1"), "no", "", False, NOW)
    retry = claimed(store, "e2")
    assert offset(store).block == block()
    store.blocks.commit(commit_of(retry))
    assert offset(store).last == block().next
    assert events(store) == ["task-started", "task-failed", "task-started", "task-completed"]
