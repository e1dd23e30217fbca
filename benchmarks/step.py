"""What a Step costs over the same work by hand: read, join, append with the same transaction.

Both sides work on tables of their own, landed alike before each turn, so that neither finds what
the other has left in Delta's caches. They take turns at going first, and at the end their tables
are held against each other. Ours is timed from the plan to the plan after it: all that a run does.

    .venv/bin/python -m benchmarks.step [--large N] [--small N] [--repeats N] [--files N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidegate.cli.output import print_table
from tidegate.cli.progress import Silence
from tidegate.cli.project import apply_changes, changes_of
from tidegate.engine.lake import DeltaLake
from tidegate.engine.session import SparkHost
from tidegate.model.execution import ExecutionState
from tidegate.model.position import START
from tidegate.project import load_project
from tidegate.wiring import Parts, open_parts

CUSTOMERS = 20_000
COLUMNS = ("rows", "repeats", "measured", "bare s", "ours s", "ratio", "difference s")


@dataclass
class Seconds:
    """What each turn took, by the clock and of the JVM's processor time.

    On a machine that others use too, only the second says much.
    """

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Time what is done meanwhile."""
        clock, processor = time.perf_counter(), _processor_seconds()
        yield
        self.clock.append(time.perf_counter() - clock)
        self.processor.append(_processor_seconds() - processor)


@dataclass
class Times:
    """Both sides of a comparison."""

    bare: Seconds = field(default_factory=Seconds)
    ours: Seconds = field(default_factory=Seconds)

    def lines(self, rows: int) -> list[tuple[object, ...]]:
        return [
            self._line(rows, "clock", self.bare.clock, self.ours.clock),
            self._line(rows, "processor", self.bare.processor, self.ours.processor),
        ]

    def _line(
        self, rows: int, measured: str, bare: list[float], ours: list[float]
    ) -> tuple[object, ...]:
        apart = statistics.median(mine - plain for mine, plain in zip(ours, bare, strict=True))
        plain, mine = statistics.median(bare), statistics.median(ours)
        return rows, len(bare), measured, plain, mine, mine / plain, apart


class Bench:
    """Two sides in one lake: `ours.fact` by a Step, `bare.fact` by hand."""

    def __init__(self, name: str, parts: Parts, spark: SparkHost, session: SparkSession) -> None:
        self._name = name
        self._parts = parts
        self._spark = spark
        self._session = session
        self._start = parts.runtime.now() - 1_000_000_000
        self._landed = 0
        self._seq = 0

    def land_customers(self) -> None:
        """Land what the rows are joined with; it never changes, so both sides share it."""
        customers = self._session.range(0, CUSTOMERS, 1, 1)
        columns = ("id AS customer_id", "concat('segment ', id % 5) AS segment")
        self._write(customers.selectExpr(*columns), "stage.customers")

    def measure(self, rows: int, repeats: int) -> Times:
        """Let both sides take the same rows, turn by turn; the first only warms."""
        times = Times()
        for turn in range(repeats + 1):
            self.land(rows)
            sides = (self._bare, self._ours) if turn % 2 else (self._ours, self._bare)
            kept = times if turn else Times()
            for side in sides:
                side(rows, kept)
        return times

    def land(self, rows: int, files: int = 0) -> None:
        numbers = self._session.range(
            self._landed, self._landed + rows, 1, files or -(-rows // 250_000)
        )
        landed = numbers.selectExpr(
            f"{self._start} + id AS pos",
            "id",
            f"pmod(xxhash64(id), {CUSTOMERS}) AS customer_id",
            "CAST(pmod(xxhash64(id, 1), 10000) / 100 AS DECIMAL(12, 2)) AS amount",
        )
        for side in ("ours", "bare"):
            self._write(landed, f"stage.{self._name}_{side}")
        self._landed += rows

    def _ours(self, rows: int, times: Times) -> None:
        with times.ours.turn():
            foreground = self._parts.foreground(self._spark, Silence())
            report = foreground.run([f"ours.{self._name}"])
        (execution,) = report.executions
        if execution.state is not ExecutionState.FINISHED or execution.rows != rows:
            raise SystemExit(f"{execution.topic} is {execution.state}: {execution.comment}")

    def _bare(self, rows: int, times: Times) -> None:
        self._seq += 1
        low, high = self._start + self._landed - rows, self._start + self._landed
        with times.bare.turn():
            orders = self._read(f"stage.{self._name}_bare").alias("o")
            customers = self._read("stage.customers").alias("c")
            joined = orders.where(f"pos >= {low} AND pos < {high}").join(
                customers, "customer_id", "left"
            )
            block = joined.select("o.pos", "o.id", "customer_id", "c.segment", "o.amount")
            options = {"txnAppId": "by hand", "txnVersion": str(self._seq), "userMetadata": "{}"}
            writer = block.write.format("delta").mode("append").options(**options)
            writer.save(self._parts.tables.path(f"bare.{self._name}"))

    def require_equal(self) -> None:
        """Both sides must have done the same work, else their times say nothing."""
        ours, bare = (
            self._read(f"{side}.{self._name}")
            .selectExpr(
                "count(*)", "sum(xxhash64(pos, id, customer_id, segment, amount) % 1000003)"
            )
            .collect()
            for side in ("ours", "bare")
        )
        if ours != bare:
            raise SystemExit(f"the tables differ: {ours} ours, {bare} by hand")

    def _read(self, table: str) -> DataFrame:
        return self._session.read.format("delta").load(self._parts.tables.path(table))

    def _write(self, rows: DataFrame, table: str) -> None:
        rows.write.format("delta").mode("append").save(self._parts.tables.path(table))


def main() -> None:
    """Print the figures."""
    arguments = _arguments()
    print(f"{os.cpu_count()} cores, {_memory():.0f} GB, load {os.getloadavg()[0]:.1f} at the start")
    names = ("large", "small", "planned")
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        write_project(Path(folder), names)
        project = load_project(Path(folder))
        project.require_sound()
        with open_parts(project) as parts, parts.spark() as spark:
            apply_changes(parts, changes_of(parts))
            session = spark.fresh()
            large, small, planned = (Bench(name, parts, spark, session) for name in names)
            large.land_customers()
            measured: list[tuple[object, ...]] = []
            for bench, rows, repeats in (
                (large, arguments.large, max(3, arguments.repeats // 2)),
                (small, arguments.small, arguments.repeats),
            ):
                measured += bench.measure(rows, repeats).lines(rows)
                bench.require_equal()
            print("\nA Step and the same work by hand, medians")
            print_table(COLUMNS, measured, empty="")
            planned.land(arguments.files * 100, arguments.files)
            print_planning(parts, spark, arguments.files, arguments.repeats)
            print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def print_planning(parts: Parts, spark: SparkHost, files: int, repeats: int) -> None:
    """Time what comes before a block: the plan over all topics, and the bounds of one block."""
    definition = parts.project.definitions["ours.planned"]
    lake = DeltaLake(parts.tables, spark)
    base = parts.tables.look(definition.base, "pos", "id").newest
    if base is None:
        raise SystemExit(f"{definition.base} is empty")
    now = parts.runtime.now()
    plan = _median(lambda: parts.lookout().plan(eager=True), repeats)
    bounds = _median(lambda: lake.find_block(definition, START, base, now), repeats)
    print(f"\nPlanning over a base of {files:,} files, medians")
    print_table(("what", "ms"), [("plan", plan * 1000), ("block bounds", bounds * 1000)], empty="")


def write_project(folder: Path, names: tuple[str, ...]) -> None:
    """Write a project with a Step for each name, alike but for its tables."""
    (folder / "views").mkdir()
    (folder / "tidegate.toml").touch()
    entries = []
    for name in names:
        entries.append(
            f"- table: ours.{name}\n"
            f"  depends_on: [stage.{name}_ours, stage.customers]\n"
            f"  transforms: [{name}]\n"
            f"  maxstep: 100000000\n"
            f"- table: stage.{name}_ours\n"
            f"  processor: source\n"
        )
        (folder / "views" / f"{name}.sql").write_text(
            "SELECT o.pos, o.id, o.customer_id, c.segment, o.amount"
            f" FROM stage.{name}_ours o"
            " LEFT JOIN stage.customers c ON c.customer_id = o.customer_id"
            " WHERE block(o.pos, o.id)"
        )
    entries.append("- table: stage.customers\n  processor: source\n")
    (folder / "lineage.yaml").write_text("".join(entries))


def _median(work: Callable[[], object], repeats: int) -> float:
    seconds = Seconds()
    for _ in range(repeats):
        with seconds.turn():
            work()
    return statistics.median(seconds.clock)


def _processor_seconds() -> float:
    """Give the processor time that this process's children, so its JVM, have used."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for child in children:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> float:
    """Give the machine's memory in GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Step against the same work by hand.")
    parser.add_argument("--large", type=int, default=1_000_000, help="rows of a large block")
    parser.add_argument("--small", type=int, default=1_000, help="rows of a small block")
    parser.add_argument("--repeats", type=int, default=10, help="turns for a small block")
    parser.add_argument("--files", type=int, default=1_000, help="files of the base planned over")
    return parser.parse_args()


if __name__ == "__main__":
    main()
