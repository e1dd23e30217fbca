"""A table cut into shards equals the one big INSERT … SELECT, whatever each shard meets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.projects import entries
from tests.spark.conftest import Shop
from tidegate.errors import ProjectError
from tidegate.model.execution import ExecutionState

LINEAGE: dict[str, Any] = {
    "table": "fact.orders",
    "depends_on": ["stage.orders"],
    "unwaited": ["stage.customers"],
    "transforms": ["o"],
    "shards": 3,
    "shard_by": "customer",
    "maxstep": 40,
}
VIEW = (
    "SELECT o.pos, o.id, c.segment, o.amount FROM stage.orders o"
    " LEFT JOIN stage.customers c ON c.customer = o.customer WHERE block(o.pos, o.id)"
)
ONWARD = {"table": "fact.onward", "depends_on": ["fact.orders"], "transforms": ["onward"]}
CUSTOMERS = [{"customer": number, "segment": f"segment {number % 3}"} for number in range(7)]


def orders(first: int, end: int) -> list[dict[str, Any]]:
    """Rows of nine customers and of nobody; each position is that of three of them."""
    return [
        {
            "pos": 100 + n // 6,
            "id": n // 3 % 2,
            "customer": None if n % 10 == 9 else n % 9,
            "amount": n,
        }
        for n in range(first, end)
    ]


def positions(shop: Shop) -> set[tuple[str, int, int]]:
    rows = shop.json("offsets", "show")
    return {
        (row["topic"], row["last_pos"], row["last_id"])
        for row in rows
        if row["topic"].startswith("fact.orders")
    }


def amounts(shop: Shop, table: str = "fact.orders") -> list[int]:
    return sorted(row[0] for row in shop.rows(table, "amount"))


def test_shards_take_each_row_once_and_set_their_own_aside(shop: Shop) -> None:
    # 31 fails a check, 32 fails Spark; they share a position, and belong to different shards.
    lineage = {**LINEAGE, "checks": {"right": "amount <> 31"}}
    poison = VIEW.replace("o.amount", "CAST(IF(o.amount = 32, 'oh', o.amount) AS BIGINT) AS amount")
    log = "SELECT topic() AS topic, sum(amount) AS amount, count(*) AS n FROM fact.orders"
    shop.write(
        {
            "lineage.yaml": entries(lineage, ONWARD),
            "views/o.sql": poison,
            "views/onward.sql": "SELECT * FROM fact.orders WHERE block(pos, id)",
            "logs/fact.orders.sql": log,
        }
    )
    shop.land("stage.customers", CUSTOMERS)
    shop.land("stage.orders", orders(0, 63))
    assert not shop.run("fact.orders:0", "fact.orders:1").failed
    # The third is behind, and what is built from the table waits for it.
    assert shop.run("fact.onward").executions == []
    report = shop.run()
    assert not report.failed, report
    assert {e.topic for e in report.executions} == {"fact.orders:2", "fact.onward"}
    assert amounts(shop) == [n for n in range(63) if n not in (31, 32)]
    assert amounts(shop, "fact.onward") == amounts(shop)
    loads = [row for row in shop.json("etl-log") if row["topic"].startswith("fact.orders:")]
    assert all(row["rows"] == row["figures"]["n"] for row in loads)
    assert sum(row["figures"]["amount"] for row in loads) == sum(amounts(shop))
    assert {row["figures"]["topic"] for row in loads} == {f"fact.orders:{n}" for n in range(3)}

    shop.write({"lineage.yaml": entries(LINEAGE, ONWARD), "views/o.sql": VIEW})
    shop.land("stage.orders", orders(63, 130))
    report = shop.run("fact.orders:*")
    assert not report.failed, report
    assert amounts(shop) == list(range(130))
    errors = [
        entity
        for number in range(3)
        for entity in shop.json_lines("logs", f"fact.orders:{number}", "--latest")
        if entity["event_type"] == "write-error"
    ]
    assert [error["state"] for error in errors] == ["written", "written"]
    assert sorted(error["entity"]["amount"] for error in errors) == [31, 32]
    known = {customer["customer"]: customer["segment"] for customer in CUSTOMERS}
    assert shop.rows("fact.orders", "pos", "id", "segment", "amount") == sorted(
        (
            (row["pos"], row["id"], known.get(row["customer"]), row["amount"])
            for row in orders(0, 130)
        ),
        key=repr,
    )
    shop.run()
    assert shop.run().executions == []


def test_rows_that_look_alike_at_one_position_are_not_taken_for_each_other(shop: Shop) -> None:
    lineage = {**LINEAGE, "checks": {"never": "amount > 100"}}
    shop.write({"lineage.yaml": entries(lineage), "views/o.sql": VIEW.replace("c.segment, ", "")})
    shop.land("stage.customers", CUSTOMERS)
    row = {"pos": 5, "id": 5, "amount": 1}
    shop.land("stage.orders", [{**row, "customer": customer} for customer in (0, 1, 5)])
    shop.run()
    assert amounts(shop) == []
    shop.write({"lineage.yaml": entries(LINEAGE)})
    shop.run()
    assert amounts(shop) == [1, 1, 1]


def test_a_table_is_cut_anew_only_where_all_of_it_stands_at_one_position(shop: Shop) -> None:
    plain = {name: value for name, value in LINEAGE.items() if not name.startswith("shard")}
    shop.write({"lineage.yaml": entries(plain), "views/o.sql": VIEW})
    shop.land("stage.customers", CUSTOMERS)
    shop.land("stage.orders", orders(0, 60))
    shop.run()
    assert positions(shop) == {("fact.orders", 109, 1)}
    shop.write({"lineage.yaml": entries(LINEAGE)})
    with pytest.raises(ProjectError, match=r"lineage.yaml:\d+: shards: fact.orders was built with"):
        shop.run()
    for number in range(3):
        shop.json("offsets", "set", f"fact.orders:{number}", "--last", "109,1")
    shop.land("stage.orders", orders(60, 100))
    assert not shop.run().failed
    assert amounts(shop) == list(range(100))

    shop.land("stage.orders", orders(102, 140))
    shop.run("fact.orders:1")
    shop.write({"lineage.yaml": entries({**LINEAGE, "shards": 5})})
    refused = shop.tidegate("run")
    assert refused.returncode == 2
    assert "its topics stand at different positions, from (116, 1) to (" in refused.stderr
    shop.write({"lineage.yaml": entries(LINEAGE)})
    report = shop.run()
    assert {execution.state for execution in report.executions} == {ExecutionState.FINISHED}
    assert amounts(shop) == sorted({*range(100), *range(102, 140)})
