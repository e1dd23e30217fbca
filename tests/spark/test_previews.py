"""`view` and `explain`: what a block would give, without a write."""

from __future__ import annotations

import pytest

from tests.projects import entries, orders
from tests.spark.conftest import Shop
from tidegate.cli.previews import Asked, plan_of, preview
from tidegate.errors import UnknownName
from tidegate.project import load_project
from tidegate.wiring import open_parts

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
    with open_parts(load_project(shop.path)) as parts:
        asked = Asked("O", None, "3,3", "5,5")
        columns, rows = preview(parts, shop.spark, asked, 20)
        assert columns == ["pos", "id", "amount"]
        assert sorted(rows) == [[4, 4, 8.0], [5, 5, 10.0]]
        assert "PushedFilters" in plan_of(parts, shop.spark, asked)
        with pytest.raises(UnknownName, match="there are: o"):
            preview(parts, shop.spark, Asked("nope", None, None, None), 1)
    assert len(shop.rows("stage.orders", "id")) == 10
