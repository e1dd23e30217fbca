"""`tidegate rebuild` refuses what cannot be rebuilt, before a JVM starts or anything changes."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli, Shop
from tests.contract.scenes import NOW, committed
from tidegate.cli.tables import chosen
from tidegate.tables.definition import tables_in
from tidegate.wiring import read_project


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("stage.customers", "stage.customers is a source: others write it"),
        ("fact.nothing+", "there is no topic 'fact.nothing' to rebuild; there are: fact.orders"),
        ("fact.*", "there is no topic 'fact.*' to rebuild"),
    ],
)
def test_a_source_or_an_unknown_topic_is_refused(cli: Cli, topic: str, said: str) -> None:
    answer = cli("rebuild", topic)
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence.startswith(said)


def test_a_topic_stands_for_itself_and_with_a_plus_for_all_that_reads_it(shop: Shop) -> None:
    definitions = tables_in(read_project(shop.path).definitions)
    assert chosen(definitions, "fact.orders") == {"fact.orders"}
    assert chosen(definitions, "fact.orders+") == {"fact.orders", "fact.hours"}


def test_nothing_is_built_yet(cli: Cli, landed: Shop) -> None:
    answer = cli("rebuild", "fact.orders", "--json")
    assert answer.code == 0
    why = "nothing of it is built yet: `tidegate run` builds it"
    assert answer.json() == {"executions": [], "not_due": [{"topic": "fact.orders", "why": why}]}
    assert not landed.table("fact.orders").exists()


def test_a_base_that_has_lost_rows_is_refused(cli: Cli, landed: Shop) -> None:
    committed_at_the_start(landed)
    with landed.store() as store:
        before = store.offsets.all()
    landed.land("stage.late", [{"pos": NOW * 2, "id": 1, "amount": 1.0}])
    view = "SELECT pos, id, amount FROM stage.late WHERE block(pos, id)"
    lineage = "- table: fact.orders\n  depends_on: stage.late\n  transforms: orders\n"
    landed.write({"lineage.yaml": lineage, "views/orders.sql": view})
    answer = cli("rebuild", "fact.orders")
    assert answer.code == 2
    assert "stage.late begins at 20" in answer.sentence
    assert answer.sentence.endswith("bring them back first, or say --force")
    with landed.store() as store:
        assert store.offsets.all() == before


def committed_at_the_start(shop: Shop) -> None:
    with shop.store() as store:
        committed(store, "e1")
