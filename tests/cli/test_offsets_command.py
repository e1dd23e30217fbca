"""`tidegate offsets`: positions seen and moved by hand, never back unless forced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli, Shop
from tests.contract.scenes import block, claimed, declared
from tidegate.model.position import START, Position


def _row(cli: Cli, topic: str = "fact.orders") -> dict[str, Any]:
    (row,) = cli("offsets", "show", topic, "--json").json()
    assert isinstance(row, dict)
    return row


def _set(cli: Cli, last: str, *more: str, topic: str = "fact.orders") -> int:
    return cli("offsets", "set", topic, "--last", last, *more).code


@pytest.mark.usefixtures("shop")
def test_a_new_project_has_no_positions(cli: Cli) -> None:
    assert cli("offsets", "show", "--json").json() == []
    assert cli("offsets", "show").out == "No topic has a position yet.\n"
    assert cli("offsets", "show", "fact.orders", "--json").json() == []


@pytest.mark.usefixtures("shop")
def test_a_topic_is_put_to_a_position(cli: Cli) -> None:
    answer = cli("offsets", "set", "fact.orders", "--last", "2000,2", "--json")
    assert answer.code == 0
    assert answer.json() == cli("offsets", "show", "--json").json()
    row = _row(cli)
    assert (row["last_pos"], row["last_id"]) == (2000, 2)
    assert (row["next_pos"], row["next_id"], row["hostid"]) == (None, None, "")
    assert "1700000000000" not in cli("offsets", "show").out
    assert _set(cli, "1700000000000,42") == 0
    assert "1700000000000" in cli("offsets", "show").out


@pytest.mark.usefixtures("shop")
def test_it_never_goes_back_unless_forced(cli: Cli) -> None:
    assert _set(cli, "2000,2") == 0
    assert _set(cli, "2000,2") == 0
    answer = cli("offsets", "set", "fact.orders", "--last", "2000,1", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == (
        "fact.orders is at (2000, 2): going back to (2000, 1) would load rows again;"
        " empty the table first, then use --force"
    )
    assert _row(cli)["last_id"] == 2
    assert _set(cli, "1000,1", "--force") == 0
    assert (_row(cli)["last_pos"], _row(cli)["last_id"]) == (1000, 1)


def test_a_block_that_is_not_finished_is_not_forgotten_unless_forced(cli: Cli, shop: Shop) -> None:
    with shop.store() as store:
        made = declared(store, "e-1", block(1, START, Position(2000, 2)))
        store.blocks.fail(made, "no such column", "", False, 1)
    assert _row(cli)["next_pos"] == 2000
    answer = cli("offsets", "set", "fact.orders", "--last", "3000,3")
    assert answer.code == 2
    assert answer.sentence.startswith(
        "fact.orders has a block up to (2000, 2) that is not finished"
    )
    assert _set(cli, "3000,3", "--force") == 0
    row = _row(cli)
    assert (row["last_pos"], row["next_pos"], row["failures"]) == (3000, None, 0)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("text", ["", "5", "x,1", "1,x", "-5,3", "5,-2", "1e3,1", "9" * 99 + ",1"])
def test_what_is_no_position_is_refused(cli: Cli, text: str) -> None:
    answer = cli("offsets", "set", "fact.orders", "--last", text, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence.startswith("--last: ")
    assert "write POS,ID, such as 1700000000000,42" in answer.sentence


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("topic", ["fact.nothing", "stage.customers", "FACT.ORDERS", "", "'; --"])
def test_only_what_is_built_here_has_a_position_to_set(cli: Cli, topic: str) -> None:
    answer = cli("offsets", "set", topic, "--last", "1,1")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == f"there is no topic {topic!r} to build in this project"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("command", [["show"], ["unlock"]])
def test_an_unknown_topic_is_refused_with_those_there_are(cli: Cli, command: list[str]) -> None:
    answer = cli("offsets", *command, "fact.nothing", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == (
        "there is no topic 'fact.nothing'; there are: fact.hours, fact.orders, stage.customers"
    )


class TestMutex:
    def test_a_topic_that_is_held_is_not_moved(self, cli: Cli, shop: Shop) -> None:
        with shop.store() as store:
            claimed(store, "e-1", host="elsewhere:1:abc")
        answer = cli("offsets", "set", "fact.orders", "--last", "1,1", "--force")
        assert (answer.code, answer.out) == (1, "")
        assert answer.sentence.startswith("fact.orders is held by elsewhere:1:abc since 2023-11-14")
        assert _row(cli)["hostid"] == "elsewhere:1:abc"

    def test_it_is_freed_by_hand_and_its_execution_is_lost(self, cli: Cli, shop: Shop) -> None:
        with shop.store() as store:
            claimed(store, "e-1", host="elsewhere:1:abc")
        answer = cli("offsets", "unlock", "fact.orders")
        assert (answer.code, answer.err) == (0, "")
        assert answer.out == "fact.orders was held by elsewhere:1:abc; it is free now.\n"
        assert _row(cli)["hostid"] == ""
        assert cli("executions", "e-1", "--json").json()["state"] == "lost"

    @pytest.mark.usefixtures("shop")
    def test_one_that_is_free_stays_free(self, cli: Cli) -> None:
        _set(cli, "1,1")
        assert cli("offsets", "unlock", "fact.orders").out == "fact.orders was free.\n"
        (row,) = cli("offsets", "unlock", "fact.orders", "--json").json()
        assert row["hostid"] == ""

    @pytest.mark.usefixtures("shop")
    def test_one_that_never_ran_has_nothing_to_free(self, cli: Cli) -> None:
        answer = cli("offsets", "unlock", "fact.orders", "--json")
        assert (answer.code, answer.out) == (2, "")
        assert "fact.orders" in answer.sentence
