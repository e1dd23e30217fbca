"""A Step gives the rows that one big INSERT … SELECT would, whatever the blocks."""

from __future__ import annotations

import time
from typing import Any

from tests.projects import entries, orders
from tests.spark.conftest import Shop

ENRICHED = """
SELECT o.pos, o.id, o.k, o.amount * :factor AS amount, c.segment
FROM stage.orders o LEFT JOIN stage.customers c ON c.k = o.k
WHERE block(o.pos, o.id)
"""
HOURS = """
SELECT max(struct(pos, id)).pos AS pos, max(struct(pos, id)).id AS id,
       pos DIV 100 AS hour, count(*) AS n, sum(amount) AS total
FROM fact.orders
WHERE upto(pos, id) AND pos DIV 100 IN (SELECT pos DIV 100 FROM fact.orders WHERE block(pos, id))
GROUP BY pos DIV 100
"""
SEGMENTS = "SELECT segment, count(*) AS n FROM fact.orders GROUP BY segment"
LINEAGE = entries(
    {"table": "stage.customers", "processor": "source", "delay": "0s"},
    {
        "table": "fact.orders",
        "depends_on": "stage.orders, stage.customers",
        "processor": "step",
        "transforms": "enriched",
        "maxstep": "40",
        "columns": {"amount": {"comment": "EUR, gross"}},
        "checks": {"amount": "amount >= 0"},
        "after": "INSERT INTO audit.blocks SELECT seq(), topic(), block_next().pos",
        "before": "CREATE SCHEMA IF NOT EXISTS audit; CREATE TABLE IF NOT EXISTS"
        " audit.blocks (seq BIGINT, topic STRING, pos BIGINT) USING DELTA",
    },
    {
        "table": "fact.hours",
        "depends_on": ["fact.orders"],
        "processor": "step",
        "transforms": ["hours"],
        "keys": ["hour"],
        "maxstep": 50,
    },
    {
        "table": "mart.segments",
        "depends_on": ["fact.orders"],
        "processor": "reload",
        "transforms": ["segments"],
    },
)


def make(shop: Shop) -> list[dict[str, Any]]:
    shop.write(
        {
            "lineage.yaml": LINEAGE,
            "views/enriched.sql": ENRICHED,
            "views/hours.sql": HOURS,
            "views/segments.sql": SEGMENTS,
        }
    )
    toml = shop.path / "tidegate.toml"
    toml.write_text(toml.read_text() + "\n[vars]\nfactor = 2\n")
    shop.land(
        "stage.customers", [{"pos": 1, "id": k, "k": k, "segment": f"s{k}"} for k in range(4)]
    )
    rows = orders((1000 + 3 * n, n) for n in range(130))
    shop.land("stage.orders", rows)
    return rows


def test_a_project_is_built_row_for_row_and_follows_new_data(shop: Shop) -> None:
    rows = make(shop)
    report = shop.run()
    assert not report.failed, [e.comment for e in report.executions]
    blocks = [e.rows for e in report.executions if e.topic == "fact.orders"]
    assert blocks == [40, 40, 40, 10]
    check_tables(shop, rows)
    assert shop.rows("fact.hours", "n") != []

    more = orders((2000 + n // 7, 500 + n) for n in range(60))
    shop.land("stage.orders", more)
    assert not shop.run().failed
    check_tables(shop, rows + more)

    again = shop.run()
    assert again.executions == []
    assert set(again.not_due) == {"fact.orders", "fact.hours", "mart.segments"}


def check_tables(shop: Shop, rows: list[dict[str, Any]]) -> None:
    expected = sorted(
        (
            (r["pos"], r["id"], r["k"], 2 * r["amount"], f"s{r['k']}" if r["k"] != 4 else None)
            for r in rows
        ),
        key=repr,
    )
    assert shop.rows("fact.orders", "pos", "id", "k", "amount", "segment") == expected
    hours: dict[int, list[float]] = {}
    for pos, _, _, amount, _ in expected:
        hours.setdefault(pos // 100, []).append(amount)
    assert shop.rows("fact.hours", "hour", "n", "total") == sorted(
        ((hour, len(amounts), sum(amounts)) for hour, amounts in hours.items()), key=repr
    )
    segments = [row[4] for row in expected]
    assert shop.rows("mart.segments", "segment", "n") == sorted(
        ((segment, segments.count(segment)) for segment in set(segments)), key=repr
    )


def test_the_log_tells_what_each_load_measured(shop: Shop) -> None:
    rows = make(shop)
    shop.run("fact.orders")
    log = shop.json("etl-log", "fact.orders")
    assert sum(row["rows"] for row in log) == len(rows)
    newest = log[0]
    assert newest["max_id"] == 129
    assert newest["max_ts"] == "1970-01-01T00:00:01.387Z"
    assert newest["nulls"]["segment"] == 2
    assert newest["nulls"]["k"] == 0
    entities = shop.tidegate("logs", "fact.orders").stdout
    assert entities.count("task-started") == 4
    assert entities.count("task-completed") == 4


def test_rows_wait_for_a_late_dependency_and_come_with_it(shop: Shop) -> None:
    lineage = entries(
        {
            "table": "fact.orders",
            "depends_on": ["stage.orders", "stage.customers"],
            "transforms": ["enriched"],
            "delay": "10min",
        }
    )
    view = ENRICHED.replace("* :factor", "")
    shop.write({"lineage.yaml": lineage, "views/enriched.sql": view})
    now = time.time_ns() // 1_000_000
    minute = 60_000
    ages = (60, 50, 30, 20, 1, 0)
    positions = [(now - age * minute, n) for n, age in enumerate(ages)]
    shop.land("stage.orders", orders(positions))
    shop.land("stage.customers", [{"pos": now - 40 * minute, "id": 1, "k": 1, "segment": "a"}])
    shop.run()
    assert [row[0] for row in shop.rows("fact.orders", "id")] == [0, 1]
    told = shop.json("why", "fact.orders")
    assert not told["due"]
    assert "held back by stage.customers" in told["why"]
    assert told["chain"][-1]["topic"] == "stage.customers"
    assert 2399 < told["chain"][-1]["behind_seconds"] < 2700

    shop.land("stage.customers", [{"pos": now - 25 * minute, "id": 2, "k": 2, "segment": "b"}])
    shop.run()
    assert [row[0] for row in shop.rows("fact.orders", "id")] == [0, 1, 2]

    shop.land("stage.customers", [{"pos": now + 1, "id": 3, "k": 3, "segment": "c"}])
    shop.run()
    assert [row[0] for row in shop.rows("fact.orders", "id")] == [0, 1, 2, 3]
    assert "younger than its delay of 10 min" in shop.json("why", "fact.orders")["why"]


def test_the_newest_row_of_a_key_stays_and_a_deleted_one_goes(shop: Shop) -> None:
    lineage = entries(
        {
            "table": "fact.latest",
            "depends_on": ["stage.orders"],
            "transforms": ["latest"],
            "keys": "k",
            "deleted": "amount < 0",
            "maxstep": 4,
        }
    )
    view = "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)"
    shop.write({"lineage.yaml": lineage, "views/latest.sql": view})
    rows: list[dict[str, Any]] = [
        {"pos": n // 2, "id": n, "k": None if n % 7 == 0 else n % 3, "amount": float(n)}
        for n in range(20)
    ]
    rows[16]["amount"] = -1.0
    rows[17]["amount"] = -1.0
    shop.land("stage.orders", rows)
    assert not shop.run().failed
    newest = {row["k"]: row for row in rows}
    kept = sorted(
        ((r["k"], r["id"], r["amount"]) for r in newest.values() if r["amount"] >= 0),
        key=repr,
    )
    assert shop.rows("fact.latest", "k", "id", "amount") == kept


def test_a_table_may_have_figures_of_its_own_in_the_log(shop: Shop) -> None:
    lineage = {
        "depends_on": ["stage.orders"],
        "transforms": ["o"],
        "maxstep": 6,
    }
    view = "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)"
    log = (
        "SELECT topic() AS topic, sum(orders.amount) AS revenue, map('k', max(k)) AS greatest"
        " FROM fact.orders WHERE amount >= 0"
    )
    bad = "SELECT k FROM fact.bad"
    shop.write(
        {
            "lineage.yaml": entries(
                {"table": "fact.orders", **lineage}, {"table": "fact.bad", **lineage}
            ),
            "views/o.sql": view,
            "logs/fact.orders.sql": log,
            "logs/fact.bad.sql": bad,
        }
    )
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    report = shop.run()
    assert not report.failed
    newest, first = shop.json("etl-log", "fact.orders")
    assert newest["figures"] == {"topic": "fact.orders", "revenue": 30.0, "greatest": {"k": 4}}
    assert first["figures"]["revenue"] == 15.0
    told = {execution.comment for execution in report.executions if execution.topic == "fact.bad"}
    assert told == {"logs/fact.bad.sql: it gives no row, or several; write a query that gives one"}
    assert len(shop.rows("fact.bad", "id")) == 10
