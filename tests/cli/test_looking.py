"""`lag` and `why`: how fresh every table is, and what keeps it from being fresher."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.contract.scenes import claimed, committed
from tests.projects import orders
from tidegate.model.position import Offset, Position

WITHOUT_SOURCE = LINEAGE[LINEAGE.index("- table: fact.orders") :]
SHAPE = {
    *("topic", "processor", "state", "due", "last", "next", "complete_to", "lag_seconds"),
    *("rows", "run", "hostid", "waiting", "dead", "stale", "held_back_by", "why"),
}


@pytest.mark.usefixtures("landed")
def test_lag_has_a_row_for_every_topic_in_the_order_of_dependence(cli: Cli) -> None:
    rows = cli("lag", "--json").json()
    assert [row["topic"] for row in rows] == ["fact.orders", "fact.hours"]
    assert all(set(row) == SHAPE for row in rows)
    first = rows[0]
    assert (first["due"], first["state"], first["processor"]) == (True, "NEW", "step")
    assert (first["last"], first["next"]) == ([0, -1], None)


@pytest.mark.usefixtures("landed")
def test_lag_is_a_table_for_people(cli: Cli) -> None:
    heading, first, second = cli("lag").out.splitlines()
    assert heading.split()[:3] == ["topic", "processor", "state"]
    assert first.startswith("fact.orders")
    assert second.startswith("fact.hours")


def test_looking_applies_and_moves_nothing(cli: Cli, landed: Shop) -> None:
    cli("lag")
    cli("why", "fact.orders")
    with landed.store() as store:
        assert store.offsets.all() == {}
        assert store.definitions.current() == {}


def test_a_project_without_topics_has_no_lag(cli: Cli, shop: Shop) -> None:
    shop.write({"lineage.yaml": ""})
    assert cli("lag", "--json").json() == []
    assert cli("lag").out.startswith("The project has no topics yet")


def test_why_names_the_table_at_fault_down_the_chain(cli: Cli, landed: Shop) -> None:
    # Without its entry, stage.customers is complete to its newest row alone.
    landed.write({"lineage.yaml": WITHOUT_SOURCE})
    told = cli("why", "fact.orders", "--json").json()
    assert set(told) == {"topic", "due", "why", "chain"}
    assert told["due"] is False
    assert told["why"].startswith("held back by stage.customers, complete to 1970-01-01T00:00:00")
    assert [link["topic"] for link in told["chain"]] == ["fact.orders", "stage.customers"]
    assert all(set(link) == {"topic", "complete_to", "behind_seconds"} for link in told["chain"])
    first, *chain = cli("why", "fact.orders").out.splitlines()
    assert first.startswith("fact.orders: held back by stage.customers")
    assert [line.split()[:2] for line in chain] == [["└", "stage.customers:"]]


def test_why_says_once_how_far_behind_it_is(cli: Cli, landed: Shop) -> None:
    landed.write({"lineage.yaml": WITHOUT_SOURCE})
    at = round(time.time() * 1000) - 21 * 60_000
    landed.land("stage.customers", [{"pos": at, "id": 2, "segment": "home"}])
    landed.land("stage.orders", orders([(at + 1_000, 9)]))
    with landed.store() as store:
        store.offsets.put(Offset("fact.orders", Position(at, 9), "fact.orders"), at)
    first, second = cli("why", "fact.orders").out.splitlines()
    assert first.startswith("fact.orders: held back by stage.customers, complete to 20")
    assert first.count("behind") == first.count("21 min") == 1, first
    # Where the reason does not say it, it still stands behind.
    assert second.endswith(" behind]")
    assert second.count("21 min") == 1


def test_the_rows_of_lag_are_named_as_those_of_the_last_block(cli: Cli, landed: Shop) -> None:
    with landed.store() as store:
        committed(store, "e-1")
    heading, first, _ = cli("lag").out.splitlines()
    assert "last block" in heading
    assert " rows" not in heading
    assert first[heading.index("last block") :].split()[0] == "9"
    assert cli("lag", "--json").json()[0]["rows"] == 9


def test_why_tells_who_holds_a_topic(cli: Cli, landed: Shop) -> None:
    with landed.store() as store:
        claimed(store, "e-1", host="elsewhere:1:abc")
    told = cli("why", "fact.orders", "--json").json()
    assert told["due"] is False
    assert told["why"].startswith("held by elsewhere:1:abc since 2023-11-14T22:13:20")


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize("topic", ["fact.nothing", "stage.customers", "Fact.Orders", ""])
def test_why_of_what_is_not_built_is_refused(cli: Cli, topic: str) -> None:
    answer = cli("why", topic, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == (
        f"there is no topic {topic!r} to build; there are: fact.orders, fact.hours"
    )


def test_a_table_that_is_broken_holds_up_its_readers_with_a_sentence(
    cli: Cli, landed: Shop
) -> None:
    log = landed.table("stage.orders") / "_delta_log" / "00000000000000000000.json"
    log.write_text("not a log")
    answer = cli("lag", "--json")
    assert answer.code == 0
    first, second = json.loads(answer.out)
    assert (first["topic"], first["held_back_by"]) == ("fact.orders", "stage.orders")
    assert first["why"].startswith("stage.orders at ")
    assert "cannot be read" in first["why"]
    assert second["topic"] == "fact.hours"
