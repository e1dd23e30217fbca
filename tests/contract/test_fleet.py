"""Instances, what they are given and what is taken from them; streams; controls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.errors import ClaimLost
from tidegate.model.execution import Execution, ExecutionState, Stream, new_execution, queued
from tidegate.model.instances import Instance, InstanceStatus
from tidegate.model.messages import InstanceState
from tidegate.ports.store import FlowControl, Store

from .scenes import NOBODY, NOW, TOPIC, block, commit_of, flow_of, offset

IDLE, BUSY = InstanceState.IDLE, InstanceState.BUSY
OURS = Instance("i-1", name="w", host="h", pid=7, process="h:7:t", kinds=("table",), tags=("big",))


@pytest.fixture
def term(store: Store) -> int:
    taken = store.leadership.take("leader", 60_000)
    assert taken is not None
    return taken


def only(store: Store) -> Instance:
    (found,) = store.instances.all()
    return found


def given(store: Store, term: int, worker: str = "i-1", id: str = "e-1") -> Execution:
    made = new_execution(id, flow_of(), NOW, worker=worker, term=term)
    store.executions.assign_all([made], term, (), NOW)
    return made


def state_of(store: Store, id: str) -> ExecutionState:
    found = store.executions.get(id)
    assert found is not None
    return found.state


class TestInstances:
    def test_ours_say_what_they_are(self, store: Store) -> None:
        store.instances.register([OURS])
        found = only(store)
        assert found == replace(
            OURS, started_at=found.started_at, status_updated_at=found.status_updated_at
        )
        assert abs(found.started_at - store.leadership.read().now) < 10_000

    def test_every_change_gives_another_stamp(self, store: Store, term: int) -> None:
        seen: list[object] = []

        def stamped() -> None:
            seen.append(store.instances.stamps()[OURS.id])
            assert len(seen) == len(set(seen))

        store.instances.register([OURS])
        stamped()
        store.instances.beat({OURS.id: BUSY}).result()
        stamped()
        store.instances.disable([OURS.id], disabled=True)
        stamped()
        store.instances.set_status(OURS.process, InstanceStatus.CLOSING)
        stamped()
        store.executions.unload([OURS.id], NOBODY, "gone", term)
        stamped()

    def test_those_that_are_asked_for_are_read(self, store: Store) -> None:
        store.instances.register([OURS, replace(OURS, id="i-2")])
        found = {one.id: one for one in store.instances.all()}
        assert store.instances.some(["i-2", "i-3"]) == {"i-2": found["i-2"]}
        many = {f"i-{number}" for number in range(5_000)}
        assert store.instances.some(many) == found

    def test_one_that_is_only_heard_is_foreign(self, store: Store) -> None:
        store.instances.beat({"f-1": BUSY, "f-2": IDLE}).result()
        found = {one.id: one for one in store.instances.all()}
        assert {id: one.kinds for id, one in found.items()} == {
            "f-1": ("external",),
            "f-2": ("external",),
        }
        assert (found["f-1"].state, found["f-2"].state) == (BUSY, IDLE)
        assert not found["f-1"].ours

    def test_a_heartbeat_is_timed_by_the_store_and_keeps_what_it_registered(
        self, store: Store
    ) -> None:
        store.instances.register([OURS])
        store.instances.beat({"i-1": BUSY}).result()
        found = only(store)
        assert (found.state, found.tags, found.process) == (BUSY, ("big",), "h:7:t")
        assert found.reported_at is not None
        assert found.reported_at >= found.started_at

    def test_the_dead_live_again_when_they_register_and_foreign_ones_when_they_are_heard(
        self, store: Store, term: int
    ) -> None:
        store.instances.register([OURS])
        store.instances.beat({"f-1": IDLE}).result()
        store.executions.unload(["i-1", "f-1"], NOBODY, "silent", term)
        store.instances.beat({"i-1": IDLE, "f-1": IDLE}).result()
        found = {one.id: one.status for one in store.instances.all()}
        assert found == {"i-1": InstanceStatus.UNLOADED, "f-1": InstanceStatus.ALIVE}
        store.instances.register([OURS])
        assert store.instances.some(["i-1"])["i-1"].status is InstanceStatus.ALIVE

    def test_a_closing_one_is_not_revived_by_its_heartbeat(self, store: Store) -> None:
        store.instances.register([OURS])
        store.instances.set_status(OURS.process, InstanceStatus.CLOSING)
        store.instances.beat({"i-1": IDLE}).result()
        assert only(store).status is InstanceStatus.CLOSING

    def test_a_disabled_one_stays_so(self, store: Store) -> None:
        store.instances.register([OURS])
        store.instances.disable(["i-1"], disabled=True)
        store.instances.beat({"i-1": IDLE}).result()
        assert not only(store).works
        store.instances.disable(["i-1"], disabled=False)
        assert only(store).works

    def test_only_those_that_left_long_ago_are_forgotten(self, store: Store, term: int) -> None:
        store.instances.register([OURS, replace(OURS, id="i-2", process="other")])
        store.instances.set_status("other", InstanceStatus.UNLOADED)
        store.instances.trim(NOW, term)
        assert len(store.instances.all()) == 2
        store.instances.trim(store.leadership.read().now + 1_000, term)
        assert only(store).id == "i-1"


class TestWork:
    def test_an_execution_is_claimed_by_its_worker_alone(self, store: Store, term: int) -> None:
        made = given(store, term)
        with pytest.raises(ClaimLost):
            store.blocks.claim(replace(made, etl_worker="i-2"), "h", NOBODY, NOW)
        assert state_of(store, "e-1") is ExecutionState.ASSIGNED
        store.blocks.claim(made, "h", NOBODY, NOW)
        assert state_of(store, "e-1") is ExecutionState.RUNNING

    def test_the_instance_is_busy_from_the_claim_to_the_end(self, store: Store, term: int) -> None:
        store.instances.register([OURS])
        made = given(store, term)
        store.blocks.claim(made, "h", NOBODY, NOW)
        assert only(store).state is BUSY
        store.blocks.declare(made, block(), NOW)
        streams = store.blocks.commit(commit_of(made)).streams
        assert only(store).state is IDLE
        assert list(store.phases.of("e-1")) == sorted(streams, key=lambda one: one.phase)
        assert {one.phase: (one.total_in, one.total_out) for one in streams} == {
            "data-extract": (10, 10),
            "structure-transform": (10, 9),
            "data-transform": (9, 9),
            "data-load": (9, 9),
        }

    def test_the_dead_lose_their_work_and_the_mutex_where_that_is_safe(
        self, store: Store, term: int
    ) -> None:
        store.instances.register([OURS])
        made = given(store, term)
        store.blocks.claim(made, "h:7:t", NOBODY, NOW)
        store.blocks.declare(made, block(), NOW)
        lost = store.executions.unload(["i-1"], frozenset({"h:7:t"}), "silent for 15 s", term)
        assert [one.id for one in lost] == ["e-1"]
        assert state_of(store, "e-1") is ExecutionState.LOST
        assert offset(store).hostid == ""
        assert offset(store).block == block()
        assert offset(store).failures == 0
        with pytest.raises(ClaimLost):
            store.blocks.commit(commit_of(made))

    def test_a_mutex_whose_holder_may_still_write_stays(self, store: Store, term: int) -> None:
        made = given(store, term)
        store.blocks.claim(made, "h:7:t", NOBODY, NOW)
        store.executions.unload(["i-1"], NOBODY, "silent", term)
        assert offset(store).hostid == "h:7:t"
        with pytest.raises(ClaimLost):
            store.blocks.fail(made, "no", "", False, NOW)
        # Its holder, which went on, is the one who knows that it writes no more.
        store.blocks.hand_back(made, "let go", NOW)
        assert offset(store).hostid == ""
        assert store.executions.get("e-1").comment == "silent"  # type: ignore[union-attr]

    def test_what_is_handed_back_can_be_taken_up_at_once(self, store: Store, term: int) -> None:
        made = given(store, term)
        store.blocks.claim(made, "h", NOBODY, NOW)
        store.blocks.declare(made, block(), NOW)
        store.blocks.hand_back(made, "its worker stopped", NOW)
        assert state_of(store, "e-1") is ExecutionState.LOST
        assert (offset(store).failures, offset(store).block) == (0, block())
        store.blocks.claim(given(store, term, id="e-2"), "other", NOBODY, NOW)

    def test_an_open_execution_can_be_asked_to_end(self, store: Store, term: int) -> None:
        given(store, term)
        assert store.executions.ask_to_cancel("e-1", NOW + 3)
        (open,) = store.executions.open(["i-1"])
        assert open.cancel_requested_at == NOW + 3
        store.executions.lose({"e-1": "cancelled"}, frozenset(), term, NOW)
        assert not store.executions.ask_to_cancel("e-1", NOW + 4)
        assert not store.executions.open()

    @pytest.mark.parametrize(("ended", "holder"), [({"h"}, ""), ({"other"}, "h")])
    def test_what_a_process_that_ended_held_is_free_with_the_loss(
        self, store: Store, term: int, ended: set[str], holder: str
    ) -> None:
        made = given(store, term)
        store.blocks.claim(made, "h", NOBODY, NOW)
        store.blocks.declare(made, block(), NOW)
        store.executions.lose({"e-1": "gone"}, frozenset(ended), term, NOW)
        assert state_of(store, "e-1") is ExecutionState.LOST
        assert (offset(store).hostid, offset(store).block) == (holder, block())


class TestForeign:
    """Executions that nobody but a foreign worker knows the end of."""

    ID = "5b0a9d20-5a7c-4f0b-9c44-0d8ab2b1b001"

    @pytest.fixture
    def waiting(self, store: Store) -> Execution:
        made = queued(self.ID, {"any": [1, "thing"]}, ["gpu"], NOW)
        store.executions.assign(made)
        return made

    def test_it_waits_for_an_instance_and_is_given_to_one(
        self, store: Store, term: int, waiting: Execution
    ) -> None:
        one = replace(waiting, etl_worker="f-1", assigned_at=NOW + 9, term=term)
        other = replace(waiting, etl_worker="f-2", assigned_at=NOW + 9, term=term)
        assert store.executions.hand_out([one], term) == [one]
        assert store.executions.hand_out([other], term) == []
        assert store.executions.get(self.ID) == one

    @pytest.mark.parametrize("end", ["lost", "rejected"])
    def test_another_one_takes_the_place_of_one_that_nobody_did(
        self, store: Store, term: int, waiting: Execution, end: str
    ) -> None:
        told = replace(waiting, etl_worker="f-1", term=term)
        store.executions.hand_out([told], term)
        if end == "lost":
            store.executions.lose({self.ID: "silent"}, frozenset(), term, NOW)
        else:
            refused = replace(told, state=ExecutionState.REJECTED, finished_at=NOW)
            store.executions.follow([(told, refused)], term, NOW)
        assert state_of(store, self.ID).value == end
        (again,) = store.executions.open()
        assert (again.retry_of, again.attempt, again.etl_worker) == (self.ID, 2, "")
        assert (again.configuration, again.tags) == (waiting.configuration, ("gpu",))

    def test_one_that_was_cancelled_is_not_tried_again(
        self, store: Store, term: int, waiting: Execution
    ) -> None:
        store.executions.ask_to_cancel(waiting.id, NOW)
        store.executions.lose({waiting.id: "cancelled by hand"}, frozenset(), term, NOW)
        assert not store.executions.open()

    def test_what_was_told_over_an_older_state_is_left(
        self, store: Store, term: int, waiting: Execution
    ) -> None:
        told = replace(waiting, etl_worker="f-1", term=term)
        store.executions.hand_out([told], term)
        done = replace(told, state=ExecutionState.FINISHED, finished_at=NOW)
        store.executions.follow([(told, done)], term, NOW)
        late = replace(told, state=ExecutionState.ACCEPTED, accepted_at=NOW)
        store.executions.follow([(told, late)], term, NOW)
        assert state_of(store, self.ID) is ExecutionState.FINISHED


class TestStreams:
    KEY = Stream("e-1", "i-1", "data-load", "fact.orders")

    def test_they_are_filled_as_they_are_told_in_any_order(self, store: Store) -> None:
        stats = replace(self.KEY, total_in=3, total_out=2, total_failed=1)
        for told in (stats, replace(self.KEY, finished_at=9), replace(self.KEY, started_at=5)):
            store.phases.record([told], NOW)
        assert store.phases.of("e-1") == [replace(stats, started_at=5, finished_at=9)]

    def test_a_repeated_start_adds_no_row_and_moves_no_time(self, store: Store) -> None:
        for at in (5, 7):
            store.phases.record([replace(self.KEY, started_at=at)], NOW)
        assert store.phases.of("e-1") == [replace(self.KEY, started_at=5)]


class TestWishes:
    def test_a_pause_is_kept_until_it_is_ended_and_both_are_in_the_log(self, store: Store) -> None:
        store.controls.pause(TOPIC, "ann", "the source is being moved", NOW)
        store.controls.ask_to_run([TOPIC], "bob", NOW + 1)
        expected = FlowControl(NOW, "ann", "the source is being moved", NOW + 1)
        assert store.controls.all() == {TOPIC: expected}
        store.controls.unpause(TOPIC, "cyd", NOW + 2)
        assert store.controls.all() == {TOPIC: FlowControl(run_asked_at=NOW + 1)}
        told = [(event["user"], event["action"]) for event in store.datasets.entities(TOPIC)]
        assert told == [
            ("ann", "pause: the source is being moved"),
            ("bob", "run now"),
            ("cyd", "resume"),
        ]
