"""The leader's turn over a real store, bus and lake, with instances that the test plays itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.projects import Folder
from tidegate.control.leader import Elector, Leader
from tidegate.model.execution import Execution, ExecutionState, queued
from tidegate.model.instances import Instance, InstanceStatus, Pace, Sharing, Writers
from tidegate.model.messages import (
    Accepted,
    Assign,
    Channel,
    Failed,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Phase,
    Rejected,
    Started,
    StreamFinished,
    StreamStarted,
    StreamStats,
    parse,
)
from tidegate.ports.outside import Bus, Inbox
from tidegate.ports.store import Delivery, OutgoingMessage, Store
from tidegate.wiring import open_parts, read_project

A, B = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"
JOB = "cccccccc-0000-4000-8000-000000000003"
PACE = Pace(loop=1, lease=60_000)
ONE_HOST = Sharing(Writers.ONE_HOST)
"""A tick that has always come: a turn goes through all of its steps."""


@dataclass
class Ear:
    """An inbox that counts what was taken from it."""

    inbox: Inbox
    count: int = 0

    def receive(self, timeout: float) -> Sequence[Delivery]:
        deliveries = self.inbox.receive(max(timeout, 0.05))
        self.count += len(deliveries)
        return deliveries

    def done(self, deliveries: Sequence[Delivery]) -> None:
        self.inbox.done(deliveries)

    def close(self) -> None:
        self.inbox.close()


@dataclass
class Stage:
    """A leader in its first term, and the ears of two instances."""

    store: Store
    bus: Bus
    leader: Leader
    ear: Ear
    controls: dict[str, Inbox]
    sent: int = 0

    def turn(self, *said: Message) -> None:
        """Let the leader hear what instances say, and go through its steps."""
        self.bus.publish(said)
        self.sent += len(said)
        self.settle()

    def settle(self) -> None:
        while True:
            self.leader.turn(self.ear)
            if self.ear.count >= self.sent:
                return

    def commands(self, instance: str) -> list[Assign]:
        """Give what an instance was told since it was last asked."""
        deliveries = self.controls[instance].receive(0.3)
        self.controls[instance].done(deliveries)
        messages = [parse(one.channel, one.body) for one in deliveries]
        return [message for message in messages if isinstance(message, Assign)]

    def execution(self, id: str) -> Execution:
        found = self.store.executions.get(id)
        assert found is not None
        return found

    def hire(self, *ids: str, **more: Any) -> None:
        # On a host of which this machine can say nothing but that it may live.
        ours = Instance("", name="w", host="afar", process="afar:1:x", kinds=("table",))
        self.store.instances.register([replace(ours, id=id, **more) for id in ids])


@contextmanager
def staged(shop: Folder, pace: Pace = PACE, lake: Sharing = ONE_HOST) -> Iterator[Stage]:
    with ExitStack() as stack:
        parts = stack.enter_context(open_parts(read_project(shop.path)))
        store, runtime = parts.store, parts.runtime
        store.definitions.apply(list(parts.project.definitions.values()), [], "ann", runtime.now())
        bus = stack.enter_context(parts.bus())
        ear = Ear(bus.manager_inbox())
        controls = {id: bus.worker_inbox([id]) for id in (A, B)}
        for inbox in (ear, *controls.values()):
            stack.callback(inbox.close)
        elector = Elector(store.leadership, "me", PACE.lease)
        assert elector.stand() == 1
        planners, holders = parts.planners(), parts.holders
        leader = Leader(1, elector, store, bus, planners, holders, runtime, pace, lake)
        yield Stage(store, bus, leader, ear, controls)


@pytest.fixture
def stage(shop: Folder) -> Iterator[Stage]:
    with staged(shop) as stage:
        yield stage


class TestTables:
    def test_what_is_due_is_stored_and_told_to_an_idle_instance(self, stage: Stage) -> None:
        stage.hire(A)
        stage.turn()
        (command,) = stage.commands(A)
        stored = stage.execution(command.execution_id)
        assert (stored.state, stored.etl_worker, stored.term) == (ExecutionState.ASSIGNED, A, 1)
        assert stored.topic in ("fact.orders", "fact.hourly")
        assert command.configuration == stored.configuration
        assert command.term == 1
        # It has one now: nothing more until that one ends.
        stage.turn()
        assert stage.commands(A) == []

    def test_two_lanes_go_to_two_instances(self, stage: Stage) -> None:
        stage.hire(A, B)
        stage.turn()
        told = [*stage.commands(A), *stage.commands(B)]
        assert {stage.execution(one.execution_id).topic for one in told} == {
            "fact.orders",
            "fact.hourly",
        }

    def test_no_more_than_max_parallel(self, shop: Folder) -> None:
        with staged(shop, replace(PACE, max_parallel=1)) as stage:
            stage.hire(A, B)
            stage.turn()
            stage.turn()
            assert len(stage.store.executions.open()) == 1

    def test_a_foreign_instance_gets_no_table(self, stage: Stage) -> None:
        stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
        assert stage.commands(A) == []

    def test_a_paused_topic_waits_and_one_that_is_asked_for_does_not(self, stage: Stage) -> None:
        stage.store.controls.pause("fact.orders", "ann", "", 1)
        stage.store.controls.pause("fact.hourly", "ann", "", 1)
        stage.hire(A)
        stage.turn()
        assert stage.commands(A) == []
        stage.store.controls.unpause("fact.orders", "ann", 2)
        stage.turn()
        (command,) = stage.commands(A)
        assert stage.execution(command.execution_id).topic == "fact.orders"

    def test_one_that_rejects_is_left_alone_until_it_is_heard_again(self, stage: Stage) -> None:
        stage.store.controls.pause("fact.hourly", "ann", "", 1)
        stage.hire(A)
        stage.turn()
        (command,) = stage.commands(A)
        stage.turn(Rejected(command.execution_id, A, 1))
        assert stage.execution(command.execution_id).state is ExecutionState.REJECTED
        assert stage.commands(A) == []
        stage.turn(Heartbeat(A, InstanceState.IDLE, 2))
        stage.turn()
        (again,) = stage.commands(A)
        assert again.execution_id != command.execution_id

    def test_what_is_not_accepted_in_time_is_lost_and_given_again(self, shop: Folder) -> None:
        with staged(shop, replace(PACE, accept_within=1)) as stage:
            stage.store.controls.pause("fact.hourly", "ann", "", 1)
            stage.hire(A)
            stage.turn()
            (command,) = stage.commands(A)
            for _ in range(3):
                stage.turn()
            lost = stage.execution(command.execution_id)
            assert lost.state is ExecutionState.LOST
            assert "not accepted" in lost.comment
            assert stage.commands(A)

    def test_the_silent_are_unloaded_and_their_work_is_given_to_others(
        self, shop: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        with staged(shop, replace(PACE, dead_after=3_000, accept_within=60_000)) as stage:
            stage.store.controls.pause("fact.hourly", "ann", "", 1)
            stage.hire(A)
            stage.turn()
            (command,) = stage.commands(A)
            while stage.execution(command.execution_id).state.open:
                stage.turn()
            (dead,) = stage.store.instances.all()
            assert dead.status is InstanceStatus.UNLOADED
            assert "was not heard" in stage.execution(command.execution_id).comment
            warnings = [one for one in caplog.records if one.levelname == "WARNING"]
            assert f"worker {dead.name or dead.id}: lost" in warnings[0].getMessage()
            stage.hire(B)
            stage.turn()
            (again,) = stage.commands(B)
            assert stage.execution(again.execution_id).topic == "fact.orders"

    @pytest.mark.parametrize(
        ("writers", "holder"), [(Writers.ALL, ""), (Writers.ONE_HOST, "afar:1:x")]
    )
    def test_what_the_silent_of_another_host_hold_is_free_where_one_commit_wins(
        self, shop: Folder, writers: Writers, holder: str
    ) -> None:
        with staged(shop, replace(PACE, dead_after=500), Sharing(writers)) as stage:
            stage.hire(A)
            stage.turn()
            (told,) = stage.commands(A)
            made = stage.execution(told.execution_id)
            stage.store.blocks.claim(made, "afar:1:x", None, made.assigned_at or 0)
            while stage.execution(made.id).state.open:
                stage.turn()
            assert stage.execution(made.id).state is ExecutionState.LOST
            held = stage.store.offsets.get(made.topic)
            assert held is not None
            assert held.hostid == holder

    def test_silence_is_noticed_by_a_leader_that_seldom_looks(self, shop: Folder) -> None:
        with staged(shop, replace(PACE, loop=400, dead_after=500)) as stage:
            stage.hire(A)
            for _ in range(10):
                stage.turn()
            (dead,) = stage.store.instances.all()
            assert dead.status is InstanceStatus.UNLOADED

    def test_a_worker_of_this_machine_that_is_gone_is_not_waited_for(self, stage: Stage) -> None:
        host = stage.leader._rescuer._holders.me.partition(":")[0]
        stage.hire(A, host=host, process=f"{host}:999999999:gone")
        stage.turn()
        (gone,) = stage.store.instances.all()
        assert gone.status is InstanceStatus.UNLOADED
        assert stage.commands(A) == []


class TestForeign:
    def submit(self, stage: Stage, tags: Sequence[str] = ()) -> None:
        stage.store.executions.assign(queued(JOB, {"do": "it"}, tags, 1))

    def test_it_is_followed_by_what_its_worker_says(self, stage: Stage) -> None:
        self.submit(stage)
        stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
        (command,) = stage.commands(A)
        assert (command.execution_id, command.configuration) == (JOB, {"do": "it"})
        where = (JOB, Phase.DATA_LOAD, "things", B)
        stage.turn(
            Accepted(JOB, A, 11),
            Started(JOB, A, 12),
            StreamStarted(*where, 13),
            StreamStats(*where, 14, 3, 2, 1),
            StreamFinished(*where, 15),
            Finished(JOB, A, 16),
        )
        done = stage.execution(JOB)
        assert done.state is ExecutionState.FINISHED
        assert (done.accepted_at, done.started_at, done.finished_at) == (11, 12, 16)
        (stream,) = stage.store.phases.of(JOB)
        assert (stream.started_at, stream.finished_at) == (13, 15)
        assert (stream.total_in, stream.total_out, stream.total_failed) == (3, 2, 1)

    def test_an_end_that_is_taken_for_word_of_a_stream_is_acted_on(self, shop: Folder) -> None:
        with staged(shop, replace(PACE, loop=60_000)) as stage:
            self.submit(stage)
            stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
            assert [command.execution_id for command in stage.commands(A)] == [JOB]
            stage.store.executions.assign(queued(B, {"do": "more"}, (), 1))
            why = 'no "etl-data-stream-started" came'
            stage.turn(Accepted(JOB, A, 11), Started(JOB, A, 12), Failed(JOB, A, 13, why))
            ended = stage.execution(JOB)
            assert (ended.state, ended.comment) == (ExecutionState.FAILED, why)
            # At once, a minute before it would look by itself.
            stage.turn()
            assert [command.execution_id for command in stage.commands(A)] == [B]

    def test_one_that_calls_itself_idle_twice_has_lost_it(self, stage: Stage) -> None:
        self.submit(stage)
        stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
        stage.turn(Accepted(JOB, A, 11), Started(JOB, A, 12))
        stage.turn()
        assert stage.execution(JOB).state is ExecutionState.RUNNING
        stage.turn(Heartbeat(A, InstanceState.IDLE, 2))
        stage.turn(Heartbeat(A, InstanceState.IDLE, 3))
        stage.turn()
        assert stage.execution(JOB).state is ExecutionState.LOST
        assert [one.retry_of for one in stage.store.executions.open()] == [JOB]

    def test_one_that_wants_tags_waits_for_them(self, stage: Stage) -> None:
        self.submit(stage, ["gpu"])
        stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
        assert stage.commands(A) == []

    def test_what_makes_no_sense_is_kept_and_skipped(self, stage: Stage) -> None:
        self.submit(stage)
        stage.turn(Heartbeat(A, InstanceState.IDLE, 1))
        bad = [b"\xff\x00", b"{}", b'{"info": {"type": "party", "timestamp": "2026-01-01T00:00Z"}}']
        stage.store.messages.put(
            [OutgoingMessage(Channel.PROGRESS, "", body) for body in bad], 1
        ).result()
        stage.sent += len(bad)
        stage.turn(
            Finished(JOB, B, 2),  # not its worker
            Finished(B, A, 2),  # no such execution
            Accepted(JOB, A, 11),
        )
        assert stage.execution(JOB).state is ExecutionState.ACCEPTED
        assert sum(stage.store.rejected.counts()[Channel.PROGRESS].values()) == 5
