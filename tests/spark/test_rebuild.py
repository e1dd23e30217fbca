"""A table built anew beside the old one: equal to one big INSERT … SELECT, in one commit."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.projects import entries, orders
from tests.spark.conftest import Shop
from tidegate.ports.kinds import Report

VIEW = """
SELECT o.pos, o.id, o.k, o.amount * 2 AS amount, topic() AS built_by
FROM stage.orders o WHERE block(o.pos, o.id)
"""
MENDED = VIEW.replace("o.k, o.amount * 2", "CAST(o.k AS STRING) AS k, o.amount * 3")
HOURS = """
SELECT max(struct(pos, id)).pos AS pos, max(struct(pos, id)).id AS id,
       pos DIV 100 AS hour, count(*) AS n, sum(amount) AS total
FROM fact.orders
WHERE upto(pos, id) AND pos DIV 100 IN (SELECT pos DIV 100 FROM fact.orders WHERE block(pos, id))
GROUP BY pos DIV 100
"""
ORDERS: dict[str, Any] = {
    "table": "fact.orders",
    "depends_on": ["stage.orders"],
    "transforms": ["o"],
    "maxstep": 40,
    "checks": {"known": "id <> 7"},
    "after": "DELETE FROM fact.orders WHERE id = 8",
    "properties": {"delta.checkpointInterval": "7"},
    "comment": "one row an order",
}
LINEAGE = entries(
    ORDERS,
    {
        "table": "fact.hours",
        "depends_on": ["fact.orders"],
        "transforms": ["hours"],
        "keys": ["hour"],
    },
    {
        "table": "mart.total",
        "depends_on": ["fact.hours"],
        "processor": "reload",
        "transforms": ["total"],
    },
)
TOTAL = "SELECT sum(total) AS total FROM fact.hours"


def make(shop: Shop) -> list[dict[str, Any]]:
    views = {"views/o.sql": VIEW, "views/hours.sql": HOURS, "views/total.sql": TOTAL}
    shop.write({"lineage.yaml": LINEAGE, **views})
    rows = orders((1000 + 3 * n, n) for n in range(130))
    shop.land("stage.orders", rows)
    assert not shop.run().failed
    return rows


def told(report: Report) -> list[str]:
    return [execution.comment for execution in report.executions if execution.state == "failed"]


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the rows that neither the check nor `after` keeps out."""
    return [row for row in rows if row["id"] not in (7, 8)]


def in_table(rows: list[dict[str, Any]], factor: int) -> list[tuple[Any, ...]]:
    return sorted(((r["id"], factor * r["amount"], "fact.orders") for r in kept(rows)), key=repr)


def hours(rows: list[dict[str, Any]], factor: int) -> list[tuple[Any, ...]]:
    found: dict[int, list[float]] = {}
    for row in kept(rows):
        found.setdefault(row["pos"] // 100, []).append(factor * row["amount"])
    return sorted(((h, len(a), sum(a)) for h, a in found.items()), key=repr)


def stale(shop: Shop) -> dict[str, str]:
    return {row["topic"]: row["stale"] for row in shop.json("lag")}


def data_commits(shop: Shop, table: str) -> list[int]:
    history = DeltaTable(shop.table(table)).history()
    return [commit["version"] for commit in history if commit["operation"] == "WRITE"]


def test_a_stopped_topic_is_rebuilt_and_what_is_built_from_it_is_marked(shop: Shop) -> None:
    rows = make(shop)
    late = orders([(1001, 900), (1500, 901)])
    more = orders((2000 + n, 1000 + n) for n in range(10))
    shop.write({"views/o.sql": MENDED})
    shop.land("stage.orders", late)
    shop.land("stage.orders", more)
    (reason,) = told(shop.run("fact.orders"))
    assert "k was bigint and is string now" in reason
    assert reason.endswith("build the table anew: tidegate rebuild fact.orders")
    (before,) = shop.json("offsets", "show", "fact.orders")
    assert before["state"] == "STOPPED"
    written = data_commits(shop, "fact.orders")
    assert shop.rows("fact.orders", "id", "amount", "built_by") == in_table(rows, 2)

    report = shop.rebuild("fact.orders")
    assert told(report) == []
    every = rows + late + more
    assert shop.rows("fact.orders", "id", "amount", "built_by") == in_table(every, 3)
    assert ("3",) in shop.rows("fact.orders", "k")
    assert len(data_commits(shop, "fact.orders")) == len(written) + 1
    metadata = DeltaTable(shop.table("fact.orders")).metadata()
    assert metadata.configuration == {"delta.checkpointInterval": "7"}
    assert metadata.description == "one row an order"
    (after,) = shop.json("offsets", "show", "fact.orders")
    assert (after["state"], after["next_pos"]) == ("DONE", None)
    assert (after["last_pos"], after["last_id"]) == (before["next_pos"], before["next_id"])

    assert sorted(path.name for path in (shop.path / "lake" / "fact").iterdir()) == [
        "hours",
        "orders",
    ]
    topics = [offset["topic"] for offset in shop.json("offsets", "show")]
    assert topics == ["fact.hours", "fact.orders", "mart.total", "stage.orders"]
    latest = shop.json_lines("logs", "fact.orders", "--latest")
    (waiting,) = [entity for entity in latest if entity.get("state") == "waiting"]
    assert (waiting["entity"]["id"], waiting["entity"]["k"]) == (7, "2")
    (row,) = [row for row in shop.json("lag") if row["topic"] == "fact.orders"]
    assert (row["waiting"], row["dead"]) == (1, 0)

    marks = stale(shop)
    assert "fact.orders was rebuilt at 2" in marks["fact.hours"]
    assert marks["fact.hours"].endswith("mend it: tidegate rebuild fact.hours+")
    assert marks["mart.total"].endswith("its next run mends it")
    assert marks["fact.orders"] == ""
    assert marks["fact.hours"] in shop.json("why", "fact.hours")["why"]

    assert not shop.run().failed
    assert shop.rows("fact.hours", "hour", "n", "total") != hours(every, 3)
    marks = stale(shop)
    assert marks["mart.total"] == ""
    assert marks["fact.hours"] != ""

    assert told(shop.rebuild("fact.hours+")) == []
    assert shop.rows("fact.hours", "hour", "n", "total") == hours(every, 3)
    assert shop.rows("mart.total", "total") == [(sum(total for *_, total in hours(every, 3)),)]
    assert set(stale(shop).values()) == {""}
    assert shop.run().executions == []


def test_a_topic_of_several_replaces_its_own_rows_alone(shop: Shop) -> None:
    def topic(table: str, tag: str, **more: Any) -> dict[str, Any]:
        name = f"{table}#{tag}"
        return {"table": name, "depends_on": [f"stage.{tag}"], "transforms": [tag], **more}

    lineage = entries(
        *(topic("fact.all", tag, partition_by="_topic") for tag in ("a", "b")),
        *(topic("fact.latest", tag, keys="k") for tag in ("a", "b")),
    )
    views = {
        f"views/{tag}.sql": f"SELECT pos, id, k, amount FROM stage.{tag} WHERE block(pos, id)"
        for tag in ("a", "b")
    }
    shop.write({"lineage.yaml": lineage, **views})
    shop.land("stage.a", orders((n, n) for n in range(10)))
    shop.land("stage.b", orders((n, 50 + n) for n in range(3, 8)))
    assert not shop.run().failed
    latest = shop.rows("fact.latest", "k", "id", "_topic")

    mended = "SELECT pos, id, k, -amount AS amount, 1 AS extra FROM stage.a WHERE block(pos, id)"
    shop.write({"views/a.sql": mended})
    assert told(shop.rebuild("fact.all#a")) == []
    rows = shop.rows("fact.all", "_topic", "id", "amount", "extra")
    assert rows == sorted(
        [
            *(("fact.all#a", n, -float(n), 1) for n in range(10)),
            *(("fact.all#b", 50 + n, float(n - 3), None) for n in range(3, 8)),
        ],
        key=repr,
    )
    metadata = DeltaTable(shop.table("fact.all")).metadata()
    assert metadata.partition_columns == ["_topic"]
    assert told(shop.rebuild("fact.latest#a")) == []
    assert shop.rows("fact.latest", "k", "id", "_topic") == latest
    extra = {row[0]: row[1] for row in shop.rows("fact.latest", "k", "extra")}
    assert extra == {0: None, 1: None, 2: None, 3: 1, 4: 1}
    assert shop.run().executions == []

    shop.write({"views/b.sql": views["views/b.sql"].replace("amount", "CAST(id AS STRING) amount")})
    (reason,) = told(shop.rebuild("fact.all#b"))
    assert "amount was double and is string now, and fact.all has rows of other topics" in reason
    assert len(shop.rows("fact.all", "id")) == 15
    # What could not be published does not stand in the way of what is mended.
    shop.write({"views/b.sql": views["views/b.sql"].replace("amount", "-amount AS amount")})
    assert told(shop.rebuild("fact.all#b")) == []
    assert ("fact.all#b", 54, -1.0, None) in shop.rows(
        "fact.all", "_topic", "id", "amount", "extra"
    )
    assert len(shop.rows("fact.all", "id")) == 15


@pytest.mark.long
def test_other_columns_leave_a_table_its_layout_and_a_reload_its_name(shop: Shop) -> None:
    view = "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)"
    step: dict[str, Any] = {"depends_on": ["stage.orders"], "transforms": ["o"]}
    lineage = entries(
        {"table": "fact.parts", **step, "partition_by": "k"},
        {"table": "fact.groups", **step, "cluster_by": "id"},
        {
            "table": "mart.all",
            "depends_on": ["fact.parts"],
            "processor": "reload",
            "transforms": ["m"],
        },
    )
    shop.write({"lineage.yaml": lineage, "views/o.sql": view, "views/m.sql": "TABLE fact.parts"})
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    shop.write({"views/m.sql": "SELECT k, amount FROM fact.parts"})
    assert not shop.run().failed
    shop.write({"views/o.sql": view.replace("amount", "CAST(amount AS STRING) AS amount")})
    assert told(shop.rebuild("fact.groups")) == []
    report = shop.rebuild("fact.parts+")
    assert told(report) == []
    assert [one.topic for one in report.executions][-1] == "mart.all"
    for table in ("fact.parts", "fact.groups", "mart.all"):
        assert ("3.0",) in shop.rows(table, "amount")
    assert DeltaTable(shop.table("fact.parts")).metadata().partition_columns == ["k"]
    detail = shop.spark.fresh().sql(f"DESCRIBE DETAIL delta.`{shop.table('fact.groups')}`")
    assert detail.collect()[0]["clusteringColumns"] == ["id"]
    assert set(stale(shop).values()) == {""}


@pytest.mark.long
def test_a_rebuild_that_fails_changes_nothing_and_starts_over_with_a_mended_view(
    shop: Shop,
) -> None:
    rows = make(shop)
    broken = VIEW.replace("amount * 2", "amount * IF(o.id > 60, raise_error('no'), 4)")
    shop.write(
        {
            "views/o.sql": broken,
            "lineage.yaml": LINEAGE.replace('"maxstep"', '"max_failed_rows": 3, "maxstep"'),
        }
    )
    report = shop.rebuild("fact.orders+")
    (reason,) = told(report)
    assert "nothing was written" in reason
    assert report.not_due == {
        "fact.hours": "fact.orders, which it reads, was not rebuilt",
        "mart.total": "fact.hours, which it reads, was not rebuilt",
    }
    assert shop.rows("fact.orders", "id", "amount", "built_by") == in_table(rows, 2)
    (begun,) = [o["topic"] for o in shop.json("offsets", "show") if "__rebuild_" in o["topic"]]
    assert begun not in {execution.topic for execution in shop.run().executions}
    assert shop.table(begun).exists()

    shop.write({"views/o.sql": VIEW.replace("* 2", "* 4")})
    report = shop.rebuild("fact.orders")
    assert told(report) == []
    assert begun not in {execution.topic for execution in report.executions}
    assert shop.rows("fact.orders", "id", "amount", "built_by") == in_table(rows, 4)
    assert not shop.table(begun).exists()


@pytest.mark.long
def test_a_table_that_is_gone_is_built_again(shop: Shop) -> None:
    rows = make(shop)
    shutil.rmtree(shop.table("fact.orders"))
    shop.land("stage.orders", orders([(3000, 3000)]))
    (reason,) = told(shop.run("fact.orders"))
    assert reason.endswith("build it anew: tidegate rebuild fact.orders")
    assert told(shop.rebuild("fact.orders")) == []
    assert shop.rows("fact.orders", "id", "amount", "built_by") == in_table(rows, 2)
    assert not shop.run().failed
    assert (3000,) in shop.rows("fact.orders", "id")
