"""The project is found as git finds its repository, and wrong calls are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Shop

EMPTY = "no topics, no views: no problems, no warnings\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "tidegate.toml").touch()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    return tmp_path / "p"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "arguments",
    [
        ["-C", "../p", "check"],
        ["check", "-C", "../p"],
        ["-C../p", "check"],
        ["check", "-C../p"],
        ["--project", "../p", "check"],
        ["check", "--project=../p"],
        ["check", "--debug", "-C", "../p"],
    ],
)
def test_the_option_may_stand_before_and_behind_the_command(cli: Cli, arguments: list[str]) -> None:
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (0, EMPTY)


def test_a_command_of_a_group_takes_it_too(cli: Cli, project: Path) -> None:
    assert cli("offsets", "show", "-C", str(project), "--json").json() == []


def test_the_variable_names_it_and_the_option_wins(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_PROJECT", str(project))
    assert cli("check").code == 0
    assert cli("check", "-C", ".").code == 2


def test_it_is_found_from_any_folder_below(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "er")
    assert cli("check").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["check", "--json"],
        ["lag", "--json"],
        ["why", "fact.orders", "--json"],
        ["offsets", "show", "--json"],
        ["logs", "fact.orders", "--json"],
        ["executions", "--json"],
        ["etl-log", "--json"],
        ["run", "--json"],
        ["apply"],
        ["resume", "fact.orders"],
    ],
)
def test_without_one_every_command_says_so_in_a_sentence(
    cli: Cli, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    answer = cli(*command)
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence.startswith("no tidegate.toml in / or above")


@pytest.mark.usefixtures("project")
def test_one_that_is_named_and_is_none_is_refused(cli: Cli) -> None:
    answer = cli("-C", "/nowhere", "check")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence.startswith("/nowhere is not a project: it has no tidegate.toml")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    "arguments",
    [
        ["chekc"],
        ["check", "--jsno"],
        ["check", "-C"],
        ["why"],
        ["offsets"],
        ["offsets", "move"],
        ["offsets", "set", "fact.orders"],
        ["executions", "--state", "bored"],
        ["executions", "--limit", "0"],
        ["logs", "fact.orders", "--limit", "many"],
        ["init"],
        [],
    ],
)
def test_a_wrong_call_exits_with_2_and_prints_no_traceback(cli: Cli, arguments: list[str]) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert "Usage" in answer.err + answer.out


@pytest.mark.usefixtures("shop")
def test_a_fault_of_our_own_is_a_sentence_and_with_debug_a_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("tidegate.wiring.read_project", broken)
    answer = cli("check", "--json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.sentence.startswith("ZeroDivisionError (by zero), which is a fault of Tidegate's")
    assert "Traceback" in cli("check", "--debug").err


@pytest.mark.usefixtures("shop")
def test_debug_shows_the_traceback_and_keeps_the_exit_code(cli: Cli) -> None:
    answer = cli("why", "fact.nothing", "--debug", "-C", "/nowhere")
    assert answer.code == 2
    assert "Traceback" in answer.err


@pytest.mark.parametrize("place", [".tidegate", ".tidegate/store.db"])
def test_a_store_that_cannot_be_made_is_a_failure_in_a_sentence(
    cli: Cli, shop: Shop, place: str
) -> None:
    if place == ".tidegate":
        (shop.path / place).write_text("a file in place of a folder")
    else:
        (shop.path / place).mkdir(parents=True)
    for command in (["offsets", "show"], ["executions"], ["etl-log"]):
        answer = cli(*command, "--json")
        assert (answer.code, answer.out) == (1, "")
        assert "store" in answer.sentence


@pytest.mark.usefixtures("shop")
def test_an_interruption_is_told_and_exits_with_130(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.wiring.read_project", interrupted)
    answer = cli("check")
    assert answer.code == 130
    assert answer.sentence == "interrupted; the next run goes on from here"
