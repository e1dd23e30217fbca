"""With a typo in the working copy people still see, and stop, what goes on: what is applied."""

from __future__ import annotations

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.contract.scenes import committed
from tidegate import wiring
from tidegate.errors import SetupError

TYPO = LINEAGE.replace("repeat: 1min", "repeet: 1min")
LINE = "lineage.yaml:7: repeet: unknown key"
TOLD = "; what follows is of the definitions that are applied"


@pytest.fixture
def mistyped(landed: Shop, cli: Cli) -> Shop:
    assert cli("apply").code == 0
    with landed.store() as store:
        committed(store, "e-1")
    landed.write({"lineage.yaml": TYPO})
    return landed


@pytest.mark.usefixtures("mistyped")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("lag", "fact.orders  step"),
        ("why fact.hours", "fact.hours: "),
        ("status", "No manager leads"),
        ("executions", "e-1"),
        ("executions e-1", "e-1"),
        ("logs fact.orders", "task-completed  e-1"),
        ("etl-log", "Nothing was loaded yet."),
        ("offsets show", "fact.orders"),
        ("offsets unlock fact.orders", "fact.orders was free."),
        ("instances list", "No instance is known"),
        ("pause fact.*", "fact.orders is paused"),
    ],
)
def test_what_looks_and_what_holds_up_goes_by_what_is_applied(
    cli: Cli, command: str, words: str
) -> None:
    answer = cli(*command.split())
    assert answer.code == 0, answer
    assert words in answer.out
    # One line, which says where the typo is and what is shown.
    assert answer.sentence.startswith(LINE)
    assert answer.sentence.endswith(TOLD)


@pytest.mark.usefixtures("mistyped")
def test_what_is_paused_goes_on_again(cli: Cli) -> None:
    assert cli("pause", "fact.orders").code == 0
    assert cli("resume", "fact.*").out == "fact.orders goes on with the next run.\n"


@pytest.mark.usefixtures("mistyped")
def test_scripts_get_what_they_always_got(cli: Cli) -> None:
    answer = cli("lag", "--json")
    assert [row["topic"] for row in answer.json()] == ["fact.orders", "fact.hours"]
    assert answer.sentence.startswith(LINE)


def test_what_stands_in_the_working_copy_only_is_not_there(cli: Cli, mistyped: Shop) -> None:
    more = "- {table: fact.new, depends_on: fact.orders, transforms: hours}\n"
    mistyped.write({"lineage.yaml": TYPO + more})
    answer = cli("why", "fact.new")
    assert answer.code == 2
    assert "there is no topic 'fact.new' to build; there are: fact.orders" in answer.err


def test_several_problems_are_counted(cli: Cli, mistyped: Shop) -> None:
    mistyped.write({"lineage.yaml": TYPO.replace("delay: 0s", "delay: soon")})
    assert " (and 1 more problem); what follows" in cli("lag").sentence
    mistyped.write({"lineage.yaml": TYPO.replace("delay", "deley").replace("keys", "kees")})
    assert " (and 2 more problems); what follows" in cli("lag").sentence


@pytest.mark.usefixtures("mistyped")
@pytest.mark.parametrize(
    "command",
    [
        "run",
        "apply",
        "apply --dry-run",
        "rebuild fact.orders",
        "offsets set fact.orders --last 1,1",
    ],
)
def test_what_goes_by_the_working_copy_refuses(cli: Cli, command: str) -> None:
    answer = cli(*command.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence.startswith(LINE)
    assert TOLD not in answer.err


@pytest.mark.usefixtures("mistyped")
def test_the_worker_that_up_starts_again_works_by_what_is_applied(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_parts: wiring.Parts) -> None:
        raise SetupError("Spark would start now")

    monkeypatch.setattr(wiring.Parts, "spark", started)
    assert cli("worker", "--name", "by hand").code == 2
    answer = cli("worker", "--child", "--no-lead")
    assert answer.code == 1
    assert answer.err.startswith(f"tidegate: {LINE}")
    assert answer.err.endswith("tidegate: Spark would start now\n")


@pytest.mark.usefixtures("mistyped")
def test_check_says_it_as_ever(cli: Cli) -> None:
    answer = cli("check")
    assert answer.code == 2
    assert LINE in answer.out


def test_where_nothing_was_applied_there_is_nothing_to_show(cli: Cli, shop: Shop) -> None:
    shop.write({"lineage.yaml": TYPO})
    for _ in range(2):
        answer = cli("lag")
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence.startswith(LINE)
        assert not (shop.path / ".tidegate").exists()
    with shop.store() as store:
        assert store.definitions.current() == {}
    assert cli("lag").sentence.startswith(LINE)


def test_settings_that_do_not_read_say_not_which_store(cli: Cli, mistyped: Shop) -> None:
    mistyped.write({"tidegate.toml": "[stor]\n"})
    answer = cli("status")
    assert (answer.code, answer.out) == (2, "")
    assert "tidegate.toml" in answer.err
