"""One bad row never stops a table: it is set aside with its reason, and comes in when it can."""

from __future__ import annotations

from typing import Any

import pytest

from tests.projects import entries, orders
from tests.spark.conftest import Shop

LINEAGE: dict[str, Any] = {
    "table": "fact.orders",
    "depends_on": ["stage.orders"],
    "transforms": ["o"],
    "maxstep": 60,
}
VIEW = "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)"
POISON: dict[str, tuple[str, dict[str, Any], str]] = {
    "check": (VIEW, {"checks": {"small": "amount <> 33"}}, "the check small (amount <> 33)"),
    "cast": (
        VIEW.replace("amount", "CAST(IF(amount = 33, 'oh', '1') AS INT) AS amount"),
        {},
        "CAST_INVALID_INPUT",
    ),
    "function": (
        VIEW.replace("amount", "careful(amount) AS amount"),
        {
            "before": "CREATE OR REPLACE TEMPORARY FUNCTION careful(x DOUBLE) RETURNS DOUBLE"
            " RETURN IF(x = 33, CAST(raise_error('not this one') AS DOUBLE), x)"
        },
        "not this one",
    ),
}


def errors(shop: Shop) -> list[dict[str, Any]]:
    log = shop.json_lines("logs", "fact.orders", "--latest")
    return [entity for entity in log if entity["event_type"] == "write-error"]


@pytest.mark.parametrize("kind", POISON)
def test_a_poison_row_is_set_aside_and_comes_in_when_the_view_is_mended(
    shop: Shop, kind: str
) -> None:
    view, fields, reason = POISON[kind]
    shop.write({"lineage.yaml": entries({**LINEAGE, **fields}), "views/o.sql": view})
    shop.land("stage.orders", orders((n // 3, n) for n in range(100)))
    report = shop.run()
    assert not report.failed, report
    others = [(n,) for n in range(100) if n != 33]
    assert shop.rows("fact.orders", "id") == sorted(others, key=repr)
    (error,) = errors(shop)
    assert reason in error["exception"]
    assert error["entity"]["id"] == 33
    assert error["retryable"]
    assert not error["dead"]
    assert shop.run().executions == []

    shop.write(
        {
            "lineage.yaml": entries(LINEAGE),
            "views/o.sql": VIEW.replace("amount", f"{kept(kind)} AS amount"),
        }
    )
    report = shop.run()
    assert [execution.rows for execution in report.executions] == [1]
    assert shop.rows("fact.orders", "id") == sorted([(n,) for n in range(100)], key=repr)
    (error,) = errors(shop)
    assert not error["retryable"]
    assert error["state"] == "written"
    assert shop.run().executions == []


def kept(kind: str) -> str:
    """The mended view gives the type that the table has."""
    return "CAST(amount AS INT)" if kind == "cast" else "amount"


def test_an_order_waits_for_its_customer_while_the_table_goes_on(shop: Shop) -> None:
    lineage = {
        **LINEAGE,
        "depends_on": ["stage.orders"],
        "unwaited": ["stage.customers"],
        "checks": {"known": "segment IS NOT NULL"},
    }
    view = (
        "SELECT o.pos, o.id, o.k, c.segment FROM stage.orders o"
        " LEFT JOIN stage.customers c ON c.k = o.k WHERE block(o.pos, o.id)"
    )
    shop.write({"lineage.yaml": entries(lineage), "views/o.sql": view})
    shop.land("stage.customers", [{"pos": k, "id": k, "k": k, "segment": "a"} for k in range(4)])
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    shop.run()
    assert [row[0] for row in shop.rows("fact.orders", "k")].count(4) == 0
    shop.land("stage.orders", orders((n, n) for n in range(10, 20)))
    shop.run()
    assert len(shop.rows("fact.orders", "id")) == 16
    assert {error["retry_attempts"] for error in errors(shop)} == {0, 1}

    shop.land("stage.customers", [{"pos": 9, "id": 9, "k": 4, "segment": "b"}])
    report = shop.run()
    assert [execution.rows for execution in report.executions] == [4]
    assert len(shop.rows("fact.orders", "id")) == 20
    assert not any(error["retryable"] for error in errors(shop))


def test_a_row_that_never_passes_is_dead_at_the_limit(shop: Shop) -> None:
    fields = {"checks": {"small": "amount <> 3"}, "max_retries_per_entity": 2}
    shop.write({"lineage.yaml": entries({**LINEAGE, **fields}), "views/o.sql": VIEW})
    for start in (0, 10, 20, 30):
        shop.land("stage.orders", orders(((n, n) for n in range(start, start + 10)), k=start))
        assert not shop.run().failed
    dead = [error for error in errors(shop) if error["dead"]]
    assert {error["entity"]["id"] for error in dead} == {3, 13}
    assert len(shop.rows("fact.orders", "id")) == 36


def test_rows_of_one_position_are_told_apart(shop: Shop) -> None:
    fields = {"checks": {"small": "amount < 4"}}
    shop.write({"lineage.yaml": entries({**LINEAGE, **fields}), "views/o.sql": VIEW})
    shop.land("stage.orders", orders((7, 7) for _ in range(5)))
    shop.run()
    assert shop.rows("fact.orders", "amount") == [(0.0,), (1.0,), (2.0,), (3.0,)]
    shop.write({"lineage.yaml": entries(LINEAGE), "views/o.sql": VIEW})
    shop.run()
    assert shop.rows("fact.orders", "amount") == [(0.0,), (1.0,), (2.0,), (3.0,), (4.0,)]


def test_keyed_rows_and_reloads_set_aside_too(shop: Shop) -> None:
    keyed = {**LINEAGE, "keys": "k", "checks": {"small": "amount < 8"}}
    mart = {
        "table": "mart.big",
        "depends_on": ["stage.orders"],
        "transforms": ["big"],
        "processor": "reload",
        "checks": {"few": "n < 3"},
    }
    views = {
        "views/o.sql": VIEW,
        "views/big.sql": "SELECT k, count(*) n FROM stage.orders GROUP BY k",
    }
    shop.write({"lineage.yaml": entries(keyed, mart), **views})
    shop.land("stage.orders", orders((n, n) for n in range(11)))
    assert not shop.run().failed
    assert shop.rows("fact.orders", "k", "id") == [(0, 5), (1, 6), (2, 7), (3, 3), (4, 4)]
    assert shop.rows("mart.big", "k", "n") == [(1, 2), (2, 2), (3, 2), (4, 2)]
    shop.write({"lineage.yaml": entries({**keyed, "checks": {}}, {**mart, "checks": {}})})
    assert not shop.run().failed
    assert shop.rows("fact.orders", "k", "id") == [(0, 10), (1, 6), (2, 7), (3, 8), (4, 9)]
    assert shop.rows("mart.big", "k", "n") == [(0, 3), (1, 2), (2, 2), (3, 2), (4, 2)]
