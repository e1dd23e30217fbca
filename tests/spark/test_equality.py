"""Random sources on real Spark: each table equals what its view gives over everything at once."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.projects import entries
from tests.spark.conftest import Shop, forget_tables
from tidegate.spark.session import SparkHost

BIG = 2**63 - 1
KEYED = ("keys", "chain")
SHAPES: dict[str, tuple[dict[str, Any], ...]] = {
    "append": ({"table": "fact.a", "depends_on": ["stage.s"], "transforms": ["all_rows"]},),
    "keys": (
        {"table": "fact.a", "depends_on": ["stage.s"], "transforms": ["all_rows"], "keys": ["k"]},
    ),
    "chain": (
        {"table": "fact.m", "depends_on": ["stage.s"], "transforms": ["all_rows"]},
        {"table": "fact.a", "depends_on": ["fact.m"], "transforms": ["onward"], "keys": "k"},
    ),
    "shards": (
        {
            "table": "fact.a",
            "depends_on": ["stage.s"],
            "transforms": ["odd", "even"],
            "shards": 3,
            "shard_by": "k",
        },
    ),
    "tags": (
        {"table": "fact.a#even", "depends_on": ["stage.s"], "transforms": ["even"]},
        {"table": "fact.a#odd", "depends_on": ["stage.s"], "transforms": ["odd"]},
    ),
    "two views": ({"table": "fact.a", "depends_on": ["stage.s"], "transforms": ["even", "odd"]},),
}
VIEWS = {
    "views/all_rows.sql": "SELECT pos, id, k, v FROM stage.s WHERE block(pos, id)",
    "views/onward.sql": "SELECT id, pos, v, k FROM fact.m WHERE Block(pos, id)",
    "views/even.sql": "SELECT * FROM all_rows WHERE v % 2 = 0",
    "views/odd.sql": "SELECT v, k, id, pos FROM all_rows WHERE v % 2 = 1",
}


@dataclass(frozen=True)
class Case:
    shape: str
    kind: str
    maxstep: int
    landings: tuple[tuple[tuple[int, int], ...], ...]
    """Files as they are written, each in order and behind the one before."""
    pause_after: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape, kind = (
        draw(st.sampled_from(sorted(SHAPES))),
        draw(st.sampled_from(("bigint", "timestamp", "timestamp_ntz"))),
    )
    times = st.integers(0, 6) if draw(st.booleans()) else st.integers(0, 10**12)
    ids = st.one_of(st.integers(0, 4), st.just(BIG), st.integers(0, BIG))
    positions = sorted(draw(st.lists(st.tuples(times, ids), min_size=0, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(positions)), max_size=2)))
    files: list[tuple[tuple[int, int], ...]] = []
    for start, end in zip([0, *cuts], [*cuts, len(positions)], strict=True):
        # What was promised as the newest position may not come again later.
        file = tuple(p for p in positions[start:end] if not files or p > max(max(f) for f in files))
        if file:
            files.append(file)
    maxstep = draw(st.integers(max(1, len(positions) // 2), len(positions) + 1))
    return Case(shape, kind, maxstep, tuple(files), draw(st.integers(0, len(files))))


@given(case=cases())
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_tables_equal_one_big_insert(spark: SparkHost, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder), spark)
        lineage = [{**entry, "maxstep": case.maxstep} for entry in SHAPES[case.shape]]
        source = {"table": "stage.s", "processor": "source"}
        shop.write({"lineage.yaml": entries(source, *lineage), **VIEWS})
        landed: list[dict[str, Any]] = []
        for number, positions in enumerate(case.landings):
            rows = [
                {"pos": pos, "id": id, "k": id % 3, "v": len(landed) + n}
                for n, (pos, id) in enumerate(positions)
            ]
            landed += rows
            shop.land(
                "stage.s", [{**row, "pos": shown(row["pos"], case)} for row in rows], case.kind
            )
            if number == case.pause_after:
                assert not shop.run().failed
        report = shop.run()
        assert not report.failed, report
        assert shop.run().executions == []
        assert built(shop, case) == expected(landed, case)
        forget_tables(spark)


def shown(pos: int, case: Case) -> Any:
    """Put a pos into the column's type; times get microseconds that do not count."""
    if case.kind == "bigint":
        return pos
    zone = UTC if case.kind == "timestamp" else None
    return datetime(1970, 1, 1, tzinfo=zone) + timedelta(milliseconds=pos, microseconds=pos % 1000)


def built(shop: Shop, case: Case) -> list[tuple[Any, ...]]:
    columns = ("pos", "id", "k") if case.shape in KEYED else ("pos", "id", "k", "v")
    return shop.rows("fact.a", *columns)


def expected(landed: list[dict[str, Any]], case: Case) -> list[tuple[Any, ...]]:
    if case.shape in KEYED:
        newest = {row["k"]: row for row in sorted(landed, key=lambda row: (row["pos"], row["id"]))}
        columns, rows = ["id", "k"], list(newest.values())
    else:
        columns, rows = ["id", "k", "v"], landed
    return sorted(((shown(r["pos"], case), *(r[c] for c in columns)) for r in rows), key=repr)
