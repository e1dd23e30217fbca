"""`pause`, `resume`, `retry` take selectors, as `run` does, of flows of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.cli.test_kinds import counting as counting
from tests.contract.scenes import NOW, block, claimed, commit_of, declared
from tidegate.model.entities import FailedRow
from tidegate.model.position import OffsetState, Position

ROW = FailedRow(Position(5, 1), 7, {"amount": -1}, "no")


def _stop(shop: Shop, *flows: str) -> None:
    with shop.store() as store:
        for flow in flows:
            store.blocks.fail(claimed(store, f"e-{flow}", topic=flow), "no", "", True, NOW)


def _paused(shop: Shop) -> list[str]:
    with shop.store() as store:
        controls = store.controls.all().items()
        return sorted(flow for flow, one in controls if one.paused_at is not None)


def _lines(cli: Cli, *arguments: str) -> list[str]:
    answer = cli(*arguments)
    assert (answer.code, answer.err) == (0, ""), answer
    return [line.split()[0].removesuffix(":") for line in answer.out.splitlines()]


@pytest.mark.parametrize(
    ("selectors", "flows"),
    [
        (["fact.orders"], ["fact.orders"]),
        (["fact.*"], ["fact.hours", "fact.orders"]),
        (["fact.orders+"], ["fact.hours", "fact.orders"]),
        (["+fact.orders"], ["fact.orders"]),
        (["+fact.hours"], ["fact.hours", "fact.orders"]),
        (["fact.hours", "fact.orders"], ["fact.hours", "fact.orders"]),
    ],
)
def test_each_that_is_meant_is_paused_with_a_line_of_its_own(
    cli: Cli, shop: Shop, selectors: list[str], flows: list[str]
) -> None:
    assert _lines(cli, "pause", *selectors) == flows
    assert _paused(shop) == flows
    assert _lines(cli, "resume", *selectors) == flows
    assert _paused(shop) == []


def test_shards_go_by_the_name_of_their_table(cli: Cli, shop: Shop) -> None:
    sharded = LINEAGE.replace("  repeat: 1min\n", "  shards: 2\n  shard_by: id\n")
    shop.write({"lineage.yaml": sharded})
    assert _lines(cli, "pause", "fact.orders") == ["fact.orders:0", "fact.orders:1"]
    assert _lines(cli, "resume", "fact.orders:1") == ["fact.orders:1"]
    assert _paused(shop) == ["fact.orders:0"]


def test_flows_of_every_kind_are_meant(cli: Cli, counting: Shop) -> None:
    assert _lines(cli, "pause", "*") == ["fact.hours", "fact.orders", "sheep"]
    assert _lines(cli, "resume", "sheep") == ["sheep"]
    # It has no lineage that a + could follow.
    assert _lines(cli, "pause", "+she*+") == ["sheep"]
    assert _paused(counting) == ["fact.hours", "fact.orders", "sheep"]


def test_of_several_what_has_nothing_to_resume_is_passed_over(cli: Cli, shop: Shop) -> None:
    _stop(shop, "fact.orders")
    answer = cli("resume", "fact.*")
    assert (answer.code, answer.out) == (0, "fact.orders goes on with the next run.\n")
    with shop.store() as store:
        offset = store.offsets.get("fact.orders")
        assert offset is not None
        assert offset.state is not OffsetState.STOPPED
    assert cli("resume", "fact.*").out == "None of 2 is paused or stopped.\n"


def test_what_is_named_alone_is_refused_before_anything_is_done(cli: Cli, shop: Shop) -> None:
    _stop(shop, "fact.orders")
    for selectors in (["fact.orders", "fact.hours"], ["fact.*", "fact.hours"]):
        answer = cli("resume", *selectors)
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence == "fact.hours is neither paused nor stopped: nothing to resume"
    assert cli("resume", "fact.orders").code == 0


def test_of_several_those_that_others_paused_keep_their_reason(cli: Cli, shop: Shop) -> None:
    with shop.store() as store:
        store.controls.pause("fact.orders", "ann", "prices", NOW)
    assert _lines(cli, "pause", "fact.*", "--why", "mine") == ["fact.hours"]
    with shop.store() as store:
        assert store.controls.all()["fact.orders"].paused_why == "prices"
    assert cli("pause", "fact.*").out == "All 2 are paused already.\n"
    assert _lines(cli, "pause", "fact.orders", "--why", "mine") == ["fact.orders"]


def test_rows_that_failed_are_tried_again_where_there_are_any(cli: Cli, shop: Shop) -> None:
    with shop.store() as store:
        made = declared(store, "e-1")
        store.failures.pend(made, 1, [ROW, replace(ROW, hash=8)], NOW)
        store.blocks.commit(commit_of(made, block()))
    told = "fact.orders: the next run tries 2 rows again.\n"
    assert cli("retry", "fact.*").out == told
    assert cli("retry", "+fact.hours").out == told
    assert cli("retry", "fact.hours+").sentence.startswith("fact.hours has no rows that failed")
    answer = cli("retry", "fact.orders", "fact.hours")
    assert (answer.code, answer.out) == (2, "")


@pytest.mark.usefixtures("shop")
def test_none_of_several_with_rows_that_failed_is_no_failure(cli: Cli) -> None:
    assert cli("retry", "fact.*").out == "None of 2 has rows that failed.\n"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("command", ["pause", "resume", "retry"])
def test_a_selector_that_means_nothing_is_refused_with_what_there_is(
    cli: Cli, command: str
) -> None:
    answer = cli(command, "mart.*")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == "'mart.*' matches no flow; there are: fact.hours, fact.orders"
    assert cli(command, "fact.nothing").sentence.startswith("there is no topic 'fact.nothing'")
