"""`view` and `explain`: what a block would give, without a write."""

from __future__ import annotations

import pytest

from tests.projects import entries, orders
from tests.spark.conftest import Shop
from tidegate.cli.tables import Asked, plan_of, preview
from tidegate.errors import UnknownName
from tidegate.wiring import open_parts, read_project

LINEAGE = entries(
    {
        "table": "fact.orders",
        "depends_on": ["stage.orders"],
        "transforms": ["o"],
        "before": "CREATE OR REPLACE TEMPORARY FUNCTION twice(x DOUBLE) RETURNS DOUBLE"
        " RETURN 2 * x; DELETE FROM stage.orders",
    }
)
VIEW = "SELECT pos, id, twice(amount) AS amount FROM stage.orders WHERE block(pos, id)"


def test_a_block_is_shown_and_explained_and_nothing_is_written(shop: Shop) -> None:
    shop.write({"lineage.yaml": LINEAGE, "views/o.sql": VIEW})
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    with open_parts(read_project(shop.path)) as parts:
        asked = Asked("O", None, "3,3", "5,5")
        columns, rows = preview(parts, shop.spark, asked, 20)
        assert columns == ["pos", "id", "amount"]
        assert sorted(rows) == [[4, 4, 8.0], [5, 5, 10.0]]
        assert "PushedFilters" in plan_of(parts, shop.spark, asked)
        with pytest.raises(UnknownName, match="there are: o"):
            preview(parts, shop.spark, Asked("nope", None, None, None), 1)
    assert len(shop.rows("stage.orders", "id")) == 10


def test_a_view_is_shown_for_all_shards_or_for_one(shop: Shop) -> None:
    sharded = {"table": "fact.orders", "depends_on": ["stage.orders"], "transforms": ["o"]}
    shop.write(
        {
            "lineage.yaml": entries({**sharded, "shards": 2, "shard_by": "k"}),
            "views/o.sql": "SELECT pos, id, k FROM stage.orders WHERE block(pos, id)",
        }
    )
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    with open_parts(read_project(shop.path)) as parts:
        shown = {
            topic: preview(parts, shop.spark, Asked("o", topic, None, None), 20)[1]
            for topic in (None, "fact.orders", "fact.orders:0", "fact.orders:1")
        }
    assert len(shown[None]) == len(shown["fact.orders"]) == 10
    both = [*shown["fact.orders:0"], *shown["fact.orders:1"]]
    assert shown["fact.orders:0"]
    assert shown["fact.orders:1"]
    assert sorted(both) == sorted(shown[None])
