"""`run` beside a manager: others do the work, and this follows it; and what its lines say."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.cli.conftest import Cli
from tests.contract.scenes import block, commit_of, execution
from tests.projects import store_at
from tidegate import wiring
from tidegate.cli.running import Bars, Lines, print_report, rate_of
from tidegate.control.foreground import LOOK_SECONDS, WITHOUT_WORKERS, Delegate
from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.flow import Operation
from tidegate.model.position import Position
from tidegate.ports.kinds import Report
from tidegate.runtime import RealRuntime
from tidegate.store import SqlStore

LEASE = 10_000
FLOWS = ("fact.orders", "fact.hours")


@dataclass
class Time(RealRuntime):
    """A clock that goes on when it is slept, and lets something happen at each look."""

    at: int = field(default_factory=lambda: RealRuntime().now())
    slept: float = 0.0
    looks: int = 0
    events: dict[int, Callable[[], None]] = field(default_factory=dict)
    """By look."""

    def now(self) -> int:
        return self.at + int(self.slept * 1000)

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.looks += 1
        assert self.looks < 1_000, "it goes on for ever"
        self.events.pop(self.looks, lambda: None)()


class Due:
    """A planner: what is due, is due until it is taken out."""

    def __init__(self) -> None:
        self.due = dict.fromkeys(FLOWS, True)

    def verdicts(self, *, eager: bool) -> Mapping[str, Any]:
        assert eager
        return {
            flow: SimpleNamespace(topic=flow, due=due, why="due: new rows" if due else "is done")
            for flow, due in self.due.items()
        }


class Heard:
    """Notes what a watcher is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def started(self, topic: str, rows_ahead: int) -> None:  # noqa: ARG002
        self.told.append(("started", topic))

    def ended(self, execution: Execution) -> None:
        self.told.append(("ended", execution.topic))

    def maintained(self, execution: Execution) -> None:
        self.told.append(("maintained", execution.topic))

    def refused(self, topic: str, why: str) -> None: ...


class Beside:
    """A run beside a manager that the test plays."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.time, self.planner, self.heard = store, Time(), Due(), Heard()
        self.managed = True
        self.seq = dict.fromkeys(FLOWS, 0)

    def at_look(self, look: int, event: Callable[[], None]) -> None:
        self.time.events[look] = event

    def run(self, flows: Collection[str] = FLOWS) -> Report:
        planners: Any = [self.planner]
        return Delegate(
            *(planners, self.store, self.time, self.heard, "ann"), lambda: self.managed, LEASE
        ).run(flows)

    def begin(self, id: str, flow: str, ago: int = 0) -> Execution:
        at = self.time.now() - ago
        made = execution(id, flow, at)
        self.store.executions.assign(made)
        self.store.blocks.claim(made, "host-1", frozenset(), at)
        return made

    def end(self, made: Execution) -> None:
        self.seq[made.topic] += 1
        seq = self.seq[made.topic]
        following = block(seq, Position(*block(seq - 1).next) if seq > 1 else block().last)
        self.store.blocks.declare(made, following, self.time.now())
        self.store.blocks.commit(commit_of(made, following, self.time.now()))
        self.planner.due[made.topic] = False

    def do(self, id: str, flow: str) -> None:
        """Begin and end between two looks."""
        self.end(self.begin(id, flow))


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    store = store_at(tmp_path / "store.db")
    yield Beside(store)
    store.close()


def _ids(report: Report) -> list[str]:
    return [one.id for one in report.executions]


class TestFollowing:
    def test_what_comes_and_goes_between_two_looks_is_told_from_its_start(
        self, beside: Beside
    ) -> None:
        beside.at_look(1, lambda: beside.do("e-1", "fact.orders"))
        beside.at_look(2, lambda: beside.do("e-2", "fact.hours"))
        report = beside.run()
        assert _ids(report) == ["e-1", "e-2"]
        assert not report.failed
        assert beside.heard.told == [
            *(("started", "fact.orders"), ("ended", "fact.orders")),
            *(("started", "fact.hours"), ("ended", "fact.hours")),
        ]
        assert report.not_due == {"fact.orders": "is done", "fact.hours": "is done"}

    def test_a_terminal_shows_it(self, beside: Beside) -> None:
        """Bars had none for it, and the command crashed."""
        shown = io.StringIO()
        with Bars(Console(file=shown, force_terminal=True, width=100)) as bars:
            beside.heard = bars  # type: ignore[assignment]
            beside.at_look(1, lambda: beside.do("e-1", "fact.orders"))
            beside.at_look(2, lambda: beside.do("e-2", "fact.hours"))
            assert _ids(beside.run()) == ["e-1", "e-2"]
        assert "fact.orders" in shown.getvalue()
        assert "9/9" in shown.getvalue()

    def test_none_is_missed_among_thousands_of_others(self, beside: Beside) -> None:
        def busy() -> None:
            beside.do("e-1", "fact.orders")
            for number in range(1_100):
                other = execution(f"o-{number}", f"mart.n{number}", beside.time.now() + 1)
                beside.store.executions.assign(other)
                beside.store.executions.ask_to_cancel(other.id, beside.time.now())
            beside.planner.due["fact.hours"] = False

        beside.at_look(1, busy)
        assert _ids(beside.run()) == ["e-1"]

    def test_no_look_reads_what_was_there_before_or_was_seen(
        self, beside: Beside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(50):
            made = beside.begin(f"old-{number}", "fact.orders", ago=3_600_000 - number)
            beside.store.blocks.hand_back(made, "", beside.time.now())
        read: list[str] = []
        begun = beside.store.executions.begun

        def counted(flows: Collection[str], since: int) -> Sequence[Execution]:
            found = begun(flows, since)
            read.extend(one.id for one in found)
            return found

        monkeypatch.setattr(type(beside.store.executions), "list", None)
        monkeypatch.setattr(beside.store.executions, "begun", counted)
        beside.at_look(1, lambda: beside.do("e-1", "fact.orders"))
        beside.at_look(50, lambda: beside.do("e-2", "fact.hours"))
        assert _ids(beside.run()) == ["e-1", "e-2"]
        assert set(read) == {"e-1", "e-2"}

    def test_a_long_one_is_known_by_its_id_whatever_the_clock_of_its_manager(
        self, beside: Beside
    ) -> None:
        made: list[Execution] = []
        # Two minutes behind: by its time alone it was there before the run.
        beside.at_look(1, lambda: made.append(beside.begin("e-1", "fact.orders", ago=120_000)))
        beside.at_look(200, lambda: beside.end(made[0]))
        beside.at_look(3, lambda: beside.do("e-2", "fact.hours"))
        assert sorted(_ids(beside.run())) == ["e-1", "e-2"]

    def test_what_ran_already_is_waited_for_and_not_reported(self, beside: Beside) -> None:
        before = beside.begin("e-0", "fact.orders")
        beside.at_look(1, lambda: beside.end(before))
        beside.at_look(2, lambda: beside.do("e-1", "fact.hours"))
        assert _ids(beside.run()) == ["e-1"]

    def test_tidying_is_told_as_such(self, beside: Beside) -> None:
        def tidy() -> None:
            made = execution("m-1", "fact.orders", beside.time.now(), Operation.MAINTAIN)
            beside.store.executions.assign(made)
            beside.store.blocks.claim(made, "host-1", frozenset(), beside.time.now())
            beside.store.blocks.nothing_to_do(made, 0, beside.time.now())
            beside.planner.due = dict.fromkeys(FLOWS, False)

        beside.at_look(1, tidy)
        beside.run()
        assert ("maintained", "fact.orders") in beside.heard.told


class TestWhenNobodyIsLeft:
    def test_it_ends_within_the_lease_and_says_what_is_left(self, beside: Beside) -> None:
        beside.at_look(1, lambda: beside.do("e-1", "fact.orders"))
        beside.at_look(2, lambda: setattr(beside, "managed", False))
        report = beside.run()
        assert beside.time.slept <= LEASE / 1000 + 3 * LOOK_SECONDS
        assert report.failed
        assert report.cut_short == (
            "no manager leads any more, so nobody runs what is left: fact.hours;"
            " `tidegate run` does it here, `tidegate up` starts a manager"
        )
        assert _ids(report) == ["e-1"]
        assert report.not_due == {"fact.orders": "is done"}

    def test_what_was_at_work_when_they_died_is_left_too(self, beside: Beside) -> None:
        def die() -> None:
            beside.begin("e-1", "fact.orders")
            beside.planner.due = dict.fromkeys(FLOWS, False)
            beside.managed = False

        beside.at_look(1, die)
        report = beside.run()
        assert "nobody runs what is left: fact.orders;" in report.cut_short
        assert report.executions == []
        assert report.not_due == {"fact.hours": "is done"}

    def test_another_manager_may_take_over(self, beside: Beside) -> None:
        beside.at_look(1, lambda: setattr(beside, "managed", False))
        beside.at_look(30, lambda: setattr(beside, "managed", True))
        beside.at_look(50, lambda: setattr(beside, "managed", False))
        beside.at_look(75, lambda: setattr(beside, "managed", True))
        beside.at_look(80, lambda: beside.do("e-1", "fact.orders"))
        beside.at_look(81, lambda: beside.do("e-2", "fact.hours"))
        report = beside.run()
        assert not report.failed
        assert report.cut_short == ""

    def test_a_manager_that_lives_has_time_to_get_a_worker(self, beside: Beside) -> None:
        length = 3_600_000
        assert beside.store.leadership.take("host-1:1:x", length) == 1
        beside.managed = False
        beside.at_look(60, lambda: setattr(beside, "managed", True))
        beside.at_look(61, lambda: setattr(beside, "managed", False))
        planners: Any = [beside.planner]
        report = Delegate(
            *(planners, beside.store, beside.time, beside.heard, "ann"),
            lambda: beside.managed,
            length,
        ).run(FLOWS)
        waited = beside.time.slept - 61 * LOOK_SECONDS
        assert waited == pytest.approx(WITHOUT_WORKERS / 1000, abs=1)
        assert report.cut_short.startswith("the manager that leads has no worker, so nobody runs")

    def test_nothing_left_needs_nobody(self, beside: Beside) -> None:
        beside.planner.due = dict.fromkeys(FLOWS, False)
        beside.managed = False
        assert not beside.run().failed

    @pytest.mark.usefixtures("landed")
    def test_the_command_says_it_and_ends_with_1(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = Report([], {"fact.hours": "is done"}, "no manager leads any more, so …")
        monkeypatch.setattr(wiring.Parts, "is_managed", lambda _parts: True)
        monkeypatch.setattr(
            wiring.Parts, "delegate", lambda *_: SimpleNamespace(run=lambda _flows: left)
        )
        for option in ([], ["--json"]):
            answer = cli("run", *option)
            assert (answer.code, answer.sentence) == (1, left.cut_short)
        assert set(answer.json()) == {"executions", "not_due"}


def _done(rows: int, seconds: float, topic: str = "fact.orders") -> Execution:
    ended = replace(execution("e", topic), state=ExecutionState.FINISHED, rows=rows)
    return replace(ended, started_at=1_000, finished_at=1_000 + int(seconds * 1000))


class TestRates:
    @pytest.mark.parametrize(
        ("rows", "seconds", "rate"),
        [
            *((1, 0.9, None), (9, 20.0, None), (999, 2.0, None)),
            *((1_000_000, 0.999, None), (0, 0.0, None)),
            *((1_000, 1.0, 1_000), (100_000, 8.0, 12_500)),
        ],
    )
    def test_one_that_means_nothing_is_left_out(
        self, rows: int, seconds: float, rate: int | None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert rate_of(rows, seconds) == rate
        Lines().ended(_done(rows, seconds))
        print_report(Report([_done(rows, seconds)]), json=False)
        shown = io.StringIO()
        with Bars(Console(file=shown, force_terminal=True, width=100)) as bars:
            bars.ended(_done(rows, seconds))
        out = capsys.readouterr().out
        assert ("rows/s" in out) == (rate is not None)
        assert ("/s" in shown.getvalue()) == (rate is not None)
        if rate is not None:
            assert out.count(f"{rate:,}") >= 2
            assert f"{rate:,}/s" in shown.getvalue()

    def test_beside_one_that_tells_the_others_have_none(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        print_report(Report([_done(1, 3.0), _done(100_000, 8.0, "fact.hours")]), json=False)
        heading, first, second = capsys.readouterr().out.splitlines()
        assert heading.split() == ["topic", "blocks", "rows", "seconds", "rows/s", "state"]
        assert first.split() == ["fact.orders", "1", "1", "3.00", "–", "finished"]
        assert second.split() == ["fact.hours", "1", "100,000", "8.00", "12,500", "finished"]

    def test_one_row_is_a_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        Lines().ended(_done(1, 3.0))
        assert capsys.readouterr().out == "fact.orders: 1 row in 3.0 s\n"
