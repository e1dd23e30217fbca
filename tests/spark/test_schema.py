"""A view that changes its columns: a new one is added, any other difference stops the topic."""

from __future__ import annotations

from tests.projects import entries, orders
from tests.spark.conftest import Shop

LINEAGE = entries(
    {"table": "fact.orders", "depends_on": ["stage.orders"], "transforms": ["o"]},
)
VIEW = "SELECT pos, id, amount FROM stage.orders WHERE block(pos, id)"


def build(shop: Shop, view: str, start: int) -> str:
    """Land ten rows and run; gives what went wrong."""
    shop.write({"lineage.yaml": LINEAGE, "views/o.sql": view})
    shop.land("stage.orders", orders((n, n) for n in range(start, start + 10)))
    report = shop.run()
    return next((e.comment for e in report.executions if e.state == "failed"), "")


def test_a_new_column_is_added_and_others_stop_the_topic_until_they_are_mended(shop: Shop) -> None:
    assert build(shop, VIEW, 0) == ""
    assert build(shop, VIEW.replace("amount", "amount, k AS `the_key`"), 10) == ""
    keys = [row[1] for row in shop.rows("fact.orders", "id", "the_key")]
    assert keys.count(None) == 10
    assert len(keys) == 20

    told = build(shop, VIEW.replace("amount", "CAST(amount AS STRING) AS amount"), 20)
    assert "amount was double and is string now; the_key is gone" in told
    (offset,) = shop.json("offsets", "show", "fact.orders")
    assert (offset["state"], offset["last_pos"]) == ("STOPPED", 19)
    (row,) = shop.json("lag")
    assert "tidegate resume fact.orders" in row["why"]
    assert shop.run().executions == []

    shop.write({"views/o.sql": VIEW.replace("amount", "amount, k AS `the_key`")})
    assert shop.tidegate("resume", "fact.orders").returncode == 0
    assert not shop.run().failed
    assert len(shop.rows("fact.orders", "id")) == 30


def test_columns_of_a_sibling_are_not_missed(shop: Shop) -> None:
    lineage = entries(
        *(
            {"table": f"fact.all#{tag}", "depends_on": [f"stage.{tag}"], "transforms": [tag]}
            for tag in ("a", "b")
        )
    )
    views = {
        "views/a.sql": "SELECT pos, id, amount FROM stage.a WHERE block(pos, id)",
        "views/b.sql": "SELECT pos, id, k FROM stage.b WHERE block(pos, id)",
    }
    shop.write({"lineage.yaml": lineage, **views})
    for tag in ("a", "b"):
        shop.land(f"stage.{tag}", orders((n, n) for n in range(3)))
    assert not shop.run().failed
    rows = shop.rows("fact.all", "_topic", "amount", "k")
    assert rows.count(("fact.all#b", None, 1)) == 1
    assert rows.count(("fact.all#a", 1.0, None)) == 1


def test_a_first_load_that_failed_does_not_settle_the_columns(shop: Shop) -> None:
    told = build(shop, VIEW.replace("amount", "CAST(concat('x', id) AS INT) AS amount"), 0)
    assert "CAST_INVALID_INPUT" in told
    told = build(shop, VIEW.replace("amount", "CAST(concat('x', id) AS DATE) AS amount"), 10)
    assert "CAST_INVALID_INPUT" in told
    assert build(shop, VIEW, 20) == ""
    assert len(shop.rows("fact.orders", "id", "amount")) == 30
