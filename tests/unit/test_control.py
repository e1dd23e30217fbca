"""The decisions of the control plane: who is overdue, who gets what, what a message changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.model.execution import (
    Execution,
    ExecutionState,
    advance,
    new_execution,
    queued,
    queued_again,
)
from tidegate.model.flow import Flow, Kind
from tidegate.model.instances import (
    FOR_ALL,
    Due,
    Instance,
    InstanceStatus,
    Sharing,
    Writers,
    assign,
    overdue,
)
from tidegate.model.messages import (
    Accepted,
    ExecutionProgress,
    Failed,
    Finished,
    InstanceState,
    Rejected,
    Started,
)
from tidegate.model.position import Position
from tidegate.spark.delta_log import writers_of
from tidegate.tables.plan import Limits, limits_of, with_limits

ME = "5b0a9d20-5a7c-4f0b-9c44-0d8ab2b1b001"


class TestOverdue:
    @pytest.mark.parametrize(
        ("reported", "started", "attentive", "dead"),
        [
            (0, 0, 0, True),
            (90, 0, 0, False),
            (None, 90, 0, False),
            (None, 0, 0, True),
            (0, 0, 90, False),
        ],
        ids=["silent", "heard", "just registered", "never heard", "a new leader"],
    )
    def test_silence_counts_from_the_latest_reason_to_listen(
        self, reported: int | None, started: int, attentive: int, dead: bool
    ) -> None:
        instance = Instance(ME, reported_at=reported, started_at=started)
        assert bool(overdue([instance], 100, attentive, 15)) is dead

    def test_the_dead_do_not_die_again(self) -> None:
        for status in (InstanceStatus.DEAD, InstanceStatus.UNLOADED):
            assert not overdue([Instance(ME, status)], 100, 0, 15)

    def test_one_that_is_closing_can_die_of_it(self) -> None:
        assert overdue([Instance(ME, InstanceStatus.CLOSING)], 100, 0, 15)


class TestAssign:
    def instances(self, *hosts: str, **more: object) -> list[Instance]:
        made = [Instance(f"{h}-{n}", host=h, kinds=("table",)) for n, h in enumerate(hosts)]
        return [replace(one, **more) for one in made]  # type: ignore[arg-type]

    def due(self, *ids: str) -> list[Due]:
        return [Due(Flow(id, Kind.TABLE, id.partition("#")[0]), 0) for id in ids]

    def chosen(self, *args: object, **kwargs: object) -> dict[str, str]:
        found = assign(*args, **kwargs)  # type: ignore[arg-type]
        return {one.due.flow.id: one.instance.id for one in found}

    def test_the_least_loaded_host_comes_first(self) -> None:
        fleet = self.instances("a", "a", "b", "b")
        assert self.chosen(self.due("x", "y"), fleet, {"a-0"}, (), None) == {"x": "b-2", "y": "a-1"}

    def test_one_instance_gets_one(self) -> None:
        assert self.chosen(self.due("x", "y"), self.instances("a"), (), (), None) == {"x": "a-0"}

    def test_one_lane_is_written_by_one(self) -> None:
        fleet = self.instances("a", "a", "a")
        assert self.chosen(self.due("x#1", "x#2", "y"), fleet, (), {"z"}, None).keys() == {
            "x#1",
            "y",
        }
        assert not self.chosen(self.due("z#1"), fleet, (), {"z"}, None)

    def test_no_more_than_the_project_allows(self) -> None:
        fleet = self.instances("a", "a", "a")
        assert len(self.chosen(self.due("x", "y", "z"), fleet, (), (), 2)) == 2
        assert not self.chosen(self.due("x"), fleet, (), (), 0)

    @pytest.mark.parametrize(
        "unfit",
        [
            {"disabled": True},
            {"state": InstanceState.BUSY},
            {"status": InstanceStatus.CLOSING},
            {"status": InstanceStatus.UNLOADED},
            {"kinds": ("external",)},
        ],
        ids=str,
    )
    def test_who_cannot_gets_nothing(self, unfit: dict[str, object]) -> None:
        assert not self.chosen(self.due("x"), self.instances("a", **unfit), (), (), None)

    def test_all_tags_that_a_flow_wants_are_carried(self) -> None:
        due = [Due(Flow("x", Kind.TABLE, "x", ("big", "ssd")), 0)]
        assert not self.chosen(due, self.instances("a", tags=("big",)), (), (), None)
        assert self.chosen(due, self.instances("a", tags=("ssd", "big", "new")), (), (), None)


def test_what_the_plan_allows_survives_the_message() -> None:
    limits = Limits(5, Position(3, 4), 9, 8, retry=True)
    flow = Flow("fact.x", Kind.TABLE, "fact.x")
    made = new_execution("e", flow, 1, configuration=with_limits(limits))
    assert limits_of(made.configuration) == limits
    made = new_execution("e", flow, 1, configuration=with_limits(None))
    assert limits_of(made.configuration) is None


def test_the_successor_of_a_lost_execution_is_the_same_whoever_makes_it() -> None:
    lost = queued(ME, {"a": 1}, ["gpu"], 1)
    again = queued_again(replace(lost, state=ExecutionState.LOST, etl_worker="w"), 9)
    assert again == queued_again(lost, 9)
    assert again.id != ME
    assert queued_again(again, 9).id not in (ME, again.id)


class TestSharing:
    OTHER = Instance("i", host="b", process="b:1:t")
    FILE = Sharing(Writers.ONE_HOST, "/lake")
    S3 = Sharing(Writers.ONE_PROCESS, "s3://bucket/lake")

    def test_a_local_lake_is_written_from_one_host(self) -> None:
        assert "a worker lives on b, and /lake is" in str(
            self.FILE.clash("a:1:t", [self.OTHER], {})
        )
        assert self.FILE.clash("b:2:u", [self.OTHER], {"fact.t": "b:3:v"}) is None

    def test_one_that_holds_a_topic_keeps_others_out_whether_it_is_heard_or_not(self) -> None:
        why = str(self.FILE.clash("a:1:t", [], {"fact.t": "a:9:x", "fact.u": "b:1:t"}))
        assert why.startswith("fact.u is held by b:1:t, and /lake is a path of this machine")
        assert why.endswith("tidegate offsets unlock fact.u")

    def test_plain_s3_is_written_by_one_process(self) -> None:
        assert "one worker process" in str(self.S3.clash("b:2:t", [self.OTHER], {}))
        assert "fact.t is held" in str(self.S3.clash("b:2:t", [], {"fact.t": "b:1:t"}))
        assert self.S3.clash("b:1:t", [self.OTHER], {"fact.t": "b:1:t"}) is None

    def test_where_one_commit_wins_nobody_is_kept_out(self) -> None:
        assert FOR_ALL.clash("a:1:t", [self.OTHER], {"fact.t": "b:1:t"}) is None

    @pytest.mark.parametrize(
        ("path", "conf", "writers"),
        [
            ("/data/lake", {}, Writers.ONE_HOST),
            ("file:///data/lake", {}, Writers.ONE_HOST),
            ("hdfs://namenode/lake", {}, Writers.ALL),
            ("abfss://c@a.dfs.core.windows.net/lake", {}, Writers.ALL),
            ("gs://bucket/lake", {}, Writers.ALL),
            ("s3://bucket/lake", {}, Writers.ONE_PROCESS),
            (
                "s3://bucket/lake",
                {"spark.delta.logStore.s3.impl": "io.delta.storage.S3DynamoDBLogStore"},
                Writers.ALL,
            ),
            (
                "s3://bucket/lake",
                {"spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore"},
                Writers.ONE_PROCESS,
            ),
            ("oss://bucket/lake", {}, Writers.ONE_PROCESS),
        ],
    )
    def test_the_path_and_the_log_store_tell_who_may_write(
        self, path: str, conf: dict[str, str], writers: Writers
    ) -> None:
        assert writers_of(path, conf) is writers


class TestProgress:
    """(execution, message) → execution."""

    START = Execution("e", Kind.EXTERNAL, "external", "", ExecutionState.ASSIGNED, etl_worker=ME)
    ACCEPTED, STARTED = Accepted("e", ME, 1), Started("e", ME, 2)
    FINISHED, FAILED = Finished("e", ME, 3), Failed("e", ME, 3, "no")
    REJECTED = Rejected("e", ME, 1)

    def after(self, *messages: ExecutionProgress) -> Execution:
        execution = self.START
        for message in messages:
            execution = advance(execution, message)
        return execution

    def test_the_usual_life(self) -> None:
        done = self.after(self.ACCEPTED, self.STARTED, self.FINISHED)
        assert done.state is ExecutionState.FINISHED
        assert (done.accepted_at, done.started_at, done.finished_at) == (1, 2, 3)

    def test_a_failure_keeps_its_reason(self) -> None:
        done = self.after(self.ACCEPTED, self.STARTED, self.FAILED)
        assert (done.state, done.comment, done.finished_at) == (ExecutionState.FAILED, "no", 3)

    def test_any_order_gives_the_same_end(self) -> None:
        usual = self.after(self.ACCEPTED, self.STARTED, self.FINISHED)
        assert self.after(self.FINISHED, self.STARTED, self.ACCEPTED) == usual
        assert self.after(self.STARTED, self.FINISHED, self.ACCEPTED) == usual

    @pytest.mark.parametrize("end", [FINISHED, FAILED, REJECTED], ids=["end", "fail", "reject"])
    def test_an_end_stays_the_end(self, end: ExecutionProgress) -> None:
        ended = self.after(end)
        for late in (self.ACCEPTED, self.STARTED, self.FINISHED, self.FAILED, self.REJECTED):
            assert advance(ended, late).state is ended.state
            assert advance(ended, late).finished_at == ended.finished_at

    def test_times_are_set_once(self) -> None:
        twice = self.after(self.ACCEPTED, Accepted("e", ME, 9), self.STARTED, Started("e", ME, 9))
        assert (twice.accepted_at, twice.started_at) == (1, 2)

    def test_one_that_runs_cannot_be_rejected(self) -> None:
        assert self.after(self.STARTED, self.REJECTED).state is ExecutionState.RUNNING

    def test_what_is_lost_stays_lost(self) -> None:
        lost = replace(self.START, state=ExecutionState.LOST, finished_at=7)
        for late in (self.ACCEPTED, self.STARTED, self.FINISHED, self.FAILED, self.REJECTED):
            assert advance(lost, late) == lost
