"""What a cold `tidegate run` of few rows costs over the same work by hand in a cold PySpark.

By hand is what somebody would write: a session with Delta's jars and no other settings of ours, the
same read, join and append with the same transaction. Each is a process of its own, started alike,
and they take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.bed import Options, judge
from benchmarks.step import project_files
from tidegate.cli.output import print_table
from tidegate.spark.jars import spark_jars

CUSTOMERS = 1_000
TURNS = 5
BY_HAND = """\
import sys
from pyspark.sql import SparkSession
lake, jars, low, high, seq = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.driver.extraClassPath", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
orders = spark.read.format("delta").load(f"{lake}/stage/small_ours").alias("o")
customers = spark.read.format("delta").load(f"{lake}/stage/customers").alias("c")
rows = orders.where(f"o.pos > {low} AND o.pos <= {high}").join(customers, "customer_id", "left")
rows = rows.select("o.pos", "o.id", "customer_id", "c.segment", "o.amount")
options = {"txnAppId": "by hand", "txnVersion": seq}
rows.write.format("delta").mode("append").options(**options).save(f"{lake}/bare/small")
spark.stop()
"""


def cold_run(options: Options) -> None:
    """Print the median of both, and of their ratio turn by turn."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as scratch:
        folder = Path(scratch)
        _make(folder)
        pairs = []
        now = time.time_ns() // 1_000_000
        for turn in range(TURNS):
            low = now + turn * options.few
            _land(folder, low, options.few)
            by_hand = partial(_bare, folder, low, options.few, turn)
            sides = {"bare": by_hand, "ours": partial(_ours, folder)}
            order = ("ours", "bare") if turn % 2 else ("bare", "ours")
            took = {side: _seconds(sides[side]) for side in order}
            pairs.append((took["bare"], took["ours"]))
        _require_equal(folder)
    _show(pairs)


def _show(pairs: list[tuple[float, float]]) -> None:
    bare, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(mine / plain for plain, mine in pairs)
    columns = ("turns", "by hand s", "tidegate run s", "ratio")
    print_table(columns, [(len(pairs), bare, ours, ratio)], empty="")
    judge("cold ratio", ratio, 0.65)


def _make(folder: Path) -> None:
    for name, text in {"tidegate.toml": "", **project_files(("small",))}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    customers = pa.table(
        {
            "customer_id": list(range(CUSTOMERS)),
            "segment": [f"segment {n % 5}" for n in range(CUSTOMERS)],
        }
    )
    write_deltalake(folder / "lake" / "stage" / "customers", customers)


def _land(folder: Path, first: int, rows: int) -> None:
    """Append rows behind a time, one a millisecond."""
    numbers = range(1, rows + 1)
    landed = pa.table(
        {
            "pos": [first + n for n in numbers],
            "id": list(numbers),
            "customer_id": [n * 7 % CUSTOMERS for n in numbers],
            "amount": [n / 100 for n in numbers],
        }
    )
    write_deltalake(folder / "lake" / "stage" / "small_ours", landed, mode="append")


def _ours(folder: Path) -> None:
    _run([sys.executable, "-m", "tidegate", "-C", str(folder), "run", "ours.small"])


def _bare(folder: Path, low: int, rows: int, turn: int) -> None:
    jars = os.pathsep.join(map(str, spark_jars()))
    bounds = [str(low), str(low + rows), str(turn)]
    _run([sys.executable, "-c", BY_HAND, str(folder / "lake"), jars, *bounds])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command[:4]} failed: {done.stderr[-2000:]}")


def _seconds(side: Callable[[], None]) -> float:
    started = time.perf_counter()
    side()
    return time.perf_counter() - started


def _require_equal(folder: Path) -> None:
    """Both sides must have done the same work, else their times say nothing."""
    columns = ["pos", "id", "customer_id", "segment", "amount"]
    ours, bare = (
        DeltaTable(folder / "lake" / side / "small")
        .to_pyarrow_table(columns=columns)
        .sort_by([("pos", "ascending")])
        for side in ("ours", "bare")
    )
    if not ours.equals(bare):
        raise SystemExit(f"the tables differ: {ours.num_rows} rows ours, {bare.num_rows} by hand")
