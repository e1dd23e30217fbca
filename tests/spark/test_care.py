"""Small files are put together and old ones deleted, with the table's rows and readers unharmed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.projects import SPARK_CONF, entries, orders, store_at
from tests.spark.conftest import Shop
from tidegate.model.flow import Kind, Operation
from tidegate.store import SqlStore
from tidegate.tables.views import read_table

VIEW = "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)"
STEP: dict[str, Any] = {"depends_on": ["stage.orders"], "transforms": ["o"], "maxstep": 5}
LINEAGE = entries(
    {"table": "fact.orders", **STEP},
    {
        "table": "fact.copy",
        "depends_on": ["fact.orders"],
        "transforms": ["copy"],
        "checks": {"good": "id >= 0"},
    },
    {
        "table": "mart.total",
        "depends_on": ["fact.orders"],
        "processor": "reload",
        "transforms": ["total"],
    },
)


def make(shop: Shop, **lake: Any) -> None:
    conf = ", ".join(f'"{name}" = "{value}"' for name, value in SPARK_CONF.items())
    keys = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lake.items())
    shop.write(
        {
            "tidegate.toml": f"[lake]\n{keys}\n[spark]\nconf = {{{conf}}}\n",
            "lineage.yaml": LINEAGE,
            "views/o.sql": VIEW,
            "views/copy.sql": "SELECT pos, id FROM fact.orders WHERE block(pos, id)",
            "views/total.sql": "SELECT count(*) AS n FROM fact.orders",
        }
    )


def files(shop: Shop, table: str) -> int:
    return len(DeltaTable(shop.table(table)).file_uris())


def test_many_small_blocks_are_compacted_and_nobody_is_woken_by_it(shop: Shop) -> None:
    make(shop, compact_files=6)
    shop.land("stage.orders", orders((n, n) for n in range(40)))
    report = shop.run("fact.orders")
    assert not report.failed
    cared = [one for one in report.executions if one.operation is Operation.MAINTAIN]
    assert [one.comment for one in cared] == ["compacted 7 small files to 1"]
    assert files(shop, "fact.orders") == 2
    assert len(shop.rows("fact.orders", "id")) == 40
    assert not shop.run().failed

    # One more file: with it a compaction comes behind the last data that the mart has read.
    make(shop, compact_files=1)
    assert shop.run().executions == []
    shop.land("stage.orders", orders([(100, 100)]))
    (block, care) = shop.run("fact.orders").executions
    assert (block.flow_kind, block.operation) == (Kind.TABLE, Operation.BUILD)
    assert (care.flow_kind, care.operation) == (Kind.TABLE, Operation.MAINTAIN)
    newest = DeltaTable(shop.table("fact.orders")).history(1)[0]
    assert newest["operation"] == "OPTIMIZE"
    (offset,) = shop.json("offsets", "show", "fact.orders")
    assert offset["state"] == "DONE"
    assert {one.topic for one in shop.run().executions} == {"fact.copy", "mart.total"}
    assert shop.run().executions == []
    assert shop.rows("mart.total", "n") == [(41,)]
    assert len(shop.rows("fact.copy", "id")) == 41
    shop.land("stage.orders", orders([(101, 101)]))
    assert not shop.run("fact.orders").failed
    assert len(shop.rows("fact.orders", "id")) == 42


@pytest.mark.long
def test_what_an_open_block_reads_is_kept_and_then_deleted(shop: Shop) -> None:
    make(shop, compact_files=1, vacuum_after="1ms")
    limits = '"max_failed_rows": 0, "checks": {"good": "id <> 1"}'
    shop.write({"lineage.yaml": LINEAGE.replace('"checks": {\n   "good": "id >= 0"\n  }', limits)})
    shop.land("stage.orders", orders((n, n) for n in range(5)))
    assert shop.run("fact.copy", "fact.orders").failed
    with store(shop) as opened:
        copy = opened.offsets.get("fact.copy")
    assert copy is not None
    assert copy.block is not None
    pinned = copy.block.versions["fact.orders"]

    shop.land("stage.orders", orders((n, n) for n in range(5, 10)))
    vacuum_again(shop)
    told = [
        one.comment
        for one in shop.run("fact.orders").executions
        if one.operation is Operation.MAINTAIN
    ]
    assert len(told) == 1
    assert "compacted" in told[0]
    assert "no VACUUM: an open block reads the table as it was until 20" in told[0]
    path = str(shop.table("fact.orders"))
    assert read_table(shop.spark.fresh(), path, pinned).count() == 5

    shop.write({"lineage.yaml": LINEAGE})
    assert not shop.run("fact.copy").failed
    shop.land("stage.orders", orders([(20, 20)]))
    vacuum_again(shop)
    report = shop.run("fact.orders")
    assert any("vacuumed" in one.comment for one in report.executions)
    assert not report.failed
    stored = {file.name for file in shop.table("fact.orders").glob("*.parquet")}
    needed = {uri.rpartition("/")[2] for uri in DeltaTable(path).file_uris()}
    assert stored == needed
    assert shop.run("fact.orders").executions == []
    assert len(shop.rows("fact.orders", "id")) == 11


@contextmanager
def store(shop: Shop) -> Iterator[SqlStore]:
    with closing(store_at(shop.path / ".tidegate" / "store.db")) as opened:
        yield opened


def vacuum_again(shop: Shop) -> None:
    """Let a day pass since the last VACUUM."""
    with sqlite3.connect(shop.path / ".tidegate" / "store.db") as database:
        database.execute("UPDATE offsets SET vacuumed_at = NULL")
    database.close()
