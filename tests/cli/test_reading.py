"""What people read of every command that starts no JVM: the words, without `--json`."""

from __future__ import annotations

import getpass
import platform
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Shop
from tests.contract.scenes import (
    NOW,
    assigned,
    block,
    claimed,
    commit_of,
    committed,
    declared,
)
from tidegate.model.entities import FailedRow
from tidegate.model.execution import queued
from tidegate.model.instances import Instance, InstanceStatus
from tidegate.model.messages import Channel, InstanceState
from tidegate.model.position import Position
from tidegate.model.records import Measures
from tidegate.ports.store import Delivery, Store
from tidegate.store import datasets

ME = getpass.getuser()
ROW = FailedRow(Position(5, 1), 7, {"amount": -1}, "amount > 0 is not true")
OURS = Instance(
    "i-1", name="big", host="here", pid=1, process="here:1:x", kinds=("table",), tags=("big", "gpu")
)


@pytest.fixture
def lived_in(landed: Shop, cli: Cli) -> Shop:
    """A shop that was worked in: every sort of entity in its logs, of flow in its store."""
    assert cli("apply").code == 0
    with landed.store() as store:
        _loads(store)
        _failures(store)
        _fleet(store)
        store.controls.pause("fact.hours", "ann", "new prices come", NOW)
        store.controls.ask_to_run(["fact.orders"], "bob", NOW)
        store.controls.note("instances", "ann", "drain i-1", NOW)
        delivery = Delivery(Channel.PROGRESS, b"{", "12")
        store.rejected.keep([(delivery, "is not JSON")], NOW)
    return landed


def _loads(store: Store) -> None:
    """Four blocks: rows fail in the first, one passes and one dies in the second."""
    measures = Measures("q-1", 1_234, 3, 1_000, 3_000, {"amount": 2, "id": 0}, {"total": 12.5})
    dead = replace(ROW, hash=8)
    broken = replace(ROW, hash=9, reason="CAST_INVALID_INPUT", raised=True)
    made = declared(store, "e-1")
    store.failures.pend(made, 1, [ROW, dead, broken], NOW)
    store.blocks.commit(commit_of(made, measures=measures))
    following = block(2, last=block(1).next)
    made = declared(store, "e-2", following)
    passed = replace(ROW.brought_in(), attempts=2)
    store.failures.pend(made, 2, [passed, dead.tried_again("still -1", 1)], NOW)
    store.blocks.commit(commit_of(made, following))


def _failures(store: Store) -> None:
    """One flow that stopped, one that nobody took, and an execution for a foreign worker."""
    made = claimed(store, "e-3", topic="mart.old")
    store.blocks.fail(made, "no such column: prize", "Traceback …", True, NOW)
    lost = claimed(store, "e-4", topic="mart.lost")
    store.blocks.hand_back(lost, "the worker was stopped", NOW)
    assigned(store, "e-5", topic="mart.new")
    store.executions.assign(queued("x-1", {"script": "a.sh"}, ["gpu"], NOW))
    store.controls.note("external", "ann", "execute x-1", NOW)


def _fleet(store: Store) -> None:
    foreign = Instance("f-1", state=InstanceState.BUSY)
    store.instances.register(
        [
            OURS,
            replace(OURS, id="i-2", disabled=True),
            replace(OURS, id="i-3", process="here:2:y"),
            replace(OURS, id="i-4", process="here:3:z"),
        ]
    )
    store.instances.set_status("here:2:y", InstanceStatus.CLOSING)
    store.instances.set_status("here:3:z", InstanceStatus.DEAD)
    store.instances.disable(["i-2"], True)
    store.instances.beat({foreign.id: foreign.state, "i-1": InstanceState.IDLE}).result()
    assert store.leadership.take("here:1:x", 10_000) == 1


READ: dict[str, tuple[str, ...]] = {
    "status": (
        "here:1:x leads since 20",
        ", term 1.",
        "Instances: 1 idle, 1 busy, 1 disabled, 1 closing, 1 dead.",
        "mart.new  waits for an instance",
        "x-1       waits for an instance",
        "mart.old    no such column: prize",
        "fact.hours  paused by ann: new prices come",
        "Skipped, since they made no sense: 1 message.",
    ),
    "lag": (
        "topic        processor  state  due  complete to",
        "last block  failed",
        "fact.orders  step       DONE",
        "1 waiting, 1 dead",
        "paused by ann at 2023-11-14T22:13:20.000Z (new prices come)",
    ),
    "lag --watch --every 0.1": ("last block", "1 waiting, 1 dead"),
    "why fact.hours": ("fact.hours: paused by ann", "`tidegate resume fact.hours` ends that"),
    "why fact.orders": ("fact.orders: due: ", "rows that failed wait for it [", " behind]"),
    "executions": (
        "id ",
        "flow ",
        "assigned at",
        "e-1  fact.orders  finished        1   9  2023-11-14T22:13:20.000Z  a note",
        "e-3  mart.old     failed          1   –  2023-11-14T22:13:20.000Z  no such column: prize",
        "e-4  mart.lost    lost            1   –",
        "e-5  mart.new     assigned        1   –",
        "x-1  external     assigned        1   –",
    ),
    "executions --state failed": ("e-3  mart.old",),
    "executions --flow fact.orders --limit 1": ("e-2  fact.orders",),
    "executions e-1": (
        "id                   e-1",
        "flow_kind            table",
        "state                finished",
        "retry_of             –",
        "assigned_at          2023-11-14T22:13:20.000Z",
        "phase                data_stream_name  in  out  failed",
        "structure-transform  orders            10    9       0",
    ),
    "executions x-1": ('configuration        {"script": "a.sh"}', 'tags                 ["gpu"]'),
    "logs fact.orders": (
        "     0  2023-11-14T22:13:20.000000Z  task-started    e-1",
        f"write-error     e-1  {ROW.entity_id} waiting: amount > 0 is not true",
        "waiting: CAST_INVALID_INPUT",
        "task-completed  e-1  9 rows, 3 failed",
        f"write-error     e-2  {ROW.entity_id} written after 2 tries: amount > 0 is not true",
        "dead after 1 try: still -1",
        "task-completed  e-2  9 rows, 1 failed",
        "operator-action bob: run now",
    ),
    "logs fact.orders --latest": ("task-completed  e-2", "operator-action bob: run now"),
    "logs fact.orders --latest --limit 1": ("operator-action bob: run now",),
    "logs fact.orders --limit 2": ("task-completed  e-2", "operator-action bob: run now"),
    "logs fact.orders --follow --limit 1": ("operator-action bob: run now",),
    "logs mart.old": ("task-started    e-3", "task-failed     e-3  no such column: prize\n"),
    "logs mart.lost": ("task-failed     e-4  ", "the worker was stopped"),
    "logs fact.hours": ("operator-action ann: pause: new prices come",),
    "logs instances": ("operator-action ann: drain i-1",),
    "logs external": ("operator-action ann: execute x-1",),
    "etl-log": (
        "topic        ts",
        "fact.orders  ",
        "1,234",
        "1970-01-01T00:00:01.000Z",
        '{"total": 12.5}  {"amount": 2}',
    ),
    "etl-log fact.orders --limit 1": ("fact.orders  ",),
    "offsets show": (
        "topic        last_pos       last_id  next_pos  next_id  rows  seq  state    complete_to",
        "fact.orders  1700000000002        2",
        "mart.old                 0       -1",
        "STOPPED",
    ),
    "offsets show mart.old": ("STOPPED",),
    "offsets set fact.orders --last 1800000000000,7": ("fact.orders  1800000000000        7",),
    "offsets unlock fact.orders": ("fact.orders was free.",),
    "instances list": (
        "instance_id  name  host  status   state",
        "i-1 big here alive idle table big, gpu 20",
        "f-1 alive busy external –",
        "i-3 big here closing",
        "i-4 big here dead",
    ),
    "instances disable i-1": ("1 instance of i-1: no more work from now on.",),
    "instances enable big": ("4 instances of big: work again from now on.",),
    "instances drain i-3": ("1 instance of i-3: what runs is finished, then the process ends.",),
    "pause fact.orders --why counting": ("fact.orders is paused; `tidegate resume fact.orders`",),
    "resume mart.old": ("mart.old goes on with the next run.",),
    "cancel e-5": ("e-5: its worker ends it; `tidegate pause`",),
    "execute --config config.json --tags gpu": (" waits for an instance; `tidegate executions ",),
    "retry fact.orders": ("fact.orders: the next run tries 2 rows again.",),
    "check": ("2 topics, 2 views: no problems, no warnings",),
    "apply": ("Nothing to apply: the store holds these very definitions.",),
    "apply --dry-run": ("Nothing to apply",),
    "init new": (
        "Made a project in new:\n",
        "  lineage.yaml\n",
        "Next: cd new, then: tidegate run",
    ),
    "doctor": (
        f"python   yes    {platform.python_version()}",
        "project  yes    3 entries, 2 views in ",
        "store    yes    sqlite, ",
        "lake     yes    ",
    ),
}
"""By command, what must stand in what it prints; how many spaces are between plays no part."""


@pytest.mark.usefixtures("lived_in")
@pytest.mark.parametrize("command", READ)
def test_people_read_it(cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    if "--watch" in command or "--follow" in command:
        monkeypatch.setattr(time, "sleep", interrupted)
    Path("config.json").write_text('{"script": "b.sh"}')
    answer = cli(*command.split())
    for words in READ[command]:
        assert _close(words) in _close(answer.out), answer.out
    assert answer.code == (130 if "--follow" in command else 0), answer
    assert "None" not in answer.out.replace("None of", "")
    assert "Error" not in answer.err


def _close(text: str) -> str:
    return re.sub(" +", " ", text)


@pytest.mark.usefixtures("lived_in")
def test_what_the_commands_did_by_hand_stands_in_the_logs(cli: Cli) -> None:
    for command in (
        *("instances disable i-1", "instances enable big", "instances drain i-3"),
        *("pause fact.orders --why counting", "resume fact.orders", "cancel e-5"),
    ):
        assert cli(*command.split()).code == 0
    done = cli("logs", "instances").out
    for what in ("disable i-1", "enable i-1, i-2, i-3, i-4", "drain i-3"):
        assert f"{ME}: {what}\n" in done
    done = cli("logs", "fact.orders").out
    assert f"{ME}: pause: counting" in done
    assert f"{ME}: resume" in done
    assert f"{ME}: cancel e-5" in cli("logs", "mart.new").out


@pytest.mark.usefixtures("shop")
def test_the_log_of_instances_is_empty_before_anything_was_done_to_them(cli: Cli) -> None:
    answer = cli("logs", "instances")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


@pytest.mark.usefixtures("shop")
def test_a_project_in_which_nothing_happened_says_so(cli: Cli) -> None:
    assert cli("status").out == ("No manager leads; `tidegate up` starts one.\nInstances: none.\n")
    assert cli("executions").out == "Nothing has run yet.\n"
    assert cli("etl-log").out == "Nothing was loaded yet.\n"
    assert cli("offsets", "show").out == "No topic has a position yet.\n"
    assert cli("instances", "list").out == (
        "No instance is known; `tidegate worker` starts some.\n"
    )


class TestLogsAreReadFromTheirEnd:
    @pytest.fixture
    def long(self, shop: Shop) -> Shop:
        with shop.store() as store:
            for number in range(1_100):
                store.controls.note("fact.orders", "ann", f"did {number}", NOW + number)
            committed(store, "e-1", at=NOW)
        return shop

    @pytest.mark.usefixtures("long")
    @pytest.mark.parametrize("option", [[], ["--latest"]])
    def test_a_limit_reads_no_more_than_that(
        self, cli: Cli, option: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidegate.store.datasets._located", counting := Counting())
        out = cli("logs", "fact.orders", "--limit", "3", *option).out
        assert [line.split()[0] for line in out.splitlines()] == ["1099", "1100", "1101"]
        assert counting.calls == 3

    @pytest.mark.usefixtures("long")
    def test_without_one_all_are_shown_a_page_at_a_time(self, cli: Cli) -> None:
        out = cli("logs", "fact.orders").out
        assert [int(line.split()[0]) for line in out.splitlines()] == list(range(1_102))


class Counting:
    """Counts the entities that are read."""

    def __init__(self) -> None:
        self.calls = 0
        self._located = datasets._located

    def __call__(self, row: object) -> object:
        self.calls += 1
        return self._located(row)  # type: ignore[arg-type]
