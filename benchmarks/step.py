"""What a Step costs over the same work by hand: read, join, append with the same transaction.

Both sides work on tables of their own, landed alike before each turn, so that neither finds what
the other has left in Delta's caches. They take turns at going first, and at the end their tables
are held against each other. Ours is timed from the plan to the plan after it: all that a run does.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from benchmarks.bed import Bed, Options, Seconds, bench_bed, judge
from tidegate.cli.output import print_table

CUSTOMERS = 20_000
COLUMNS = ("rows", "repeats", "measured", "bare s", "ours s", "ratio", "difference s")


@dataclass
class Times:
    """Both sides of a comparison."""

    bare: Seconds = field(default_factory=Seconds)
    ours: Seconds = field(default_factory=Seconds)

    @property
    def ratio(self) -> float:
        return _ratio(self.bare.clock, self.ours.clock)

    @property
    def difference(self) -> float:
        return _apart(self.bare.clock, self.ours.clock)

    def lines(self, rows: int) -> list[tuple[object, ...]]:
        return [
            self._line(rows, "clock", self.bare.clock, self.ours.clock),
            self._line(rows, "processor", self.bare.processor, self.ours.processor),
        ]

    def _line(
        self, rows: int, measured: str, bare: list[float], ours: list[float]
    ) -> tuple[object, ...]:
        plain, mine = statistics.median(bare), statistics.median(ours)
        compared = (_ratio(bare, ours), _apart(bare, ours))
        return rows, len(bare), measured, plain, mine, *compared


# Of pairs, one right after the other: the machine changes more than either side does.


def _ratio(bare: list[float], ours: list[float]) -> float:
    return statistics.median(mine / plain for mine, plain in zip(ours, bare, strict=True))


def _apart(bare: list[float], ours: list[float]) -> float:
    return statistics.median(mine - plain for mine, plain in zip(ours, bare, strict=True))


class Bench:
    """Two sides in one lake: `ours.fact` by a Step, `bare.fact` by hand."""

    def __init__(self, name: str, bed: Bed) -> None:
        self._name = name
        self._bed = bed
        self._session = bed.session
        self._start = bed.parts.runtime.now() - 1_000_000_000
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
            done = self._bed.run(f"ours.{self._name}")
        if done != rows:
            raise SystemExit(f"ours.{self._name} took {done} rows, not {rows}")

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
            writer.save(self._bed.path(f"bare.{self._name}"))

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
        return self._session.read.format("delta").load(self._bed.path(table))

    def _write(self, rows: DataFrame, table: str) -> None:
        rows.write.format("delta").mode("append").save(self._bed.path(table))


def against_hand(options: Options) -> None:
    """Print what a Step of many rows, and one of few, costs over the same work by hand."""
    names = ("large", "small")
    with bench_bed(project_files(names)) as bed:
        large, small = (Bench(name, bed) for name in names)
        large.land_customers()
        # Six runs of ten pairs gave anything from 1.01 to 1.14: too few to tell.
        pairs = 5 * options.repeats // 2
        measured = large.measure(options.rows, pairs)
        large.require_equal()
        few = small.measure(options.few, pairs)
        small.require_equal()
        lines = [*measured.lines(options.rows), *few.lines(options.few)]
        print_table(COLUMNS, lines, empty="")
        judge("large ratio", measured.ratio, 1.10)
        judge("small difference, s", few.difference, 0.25)


def project_files(names: tuple[str, ...]) -> dict[str, str]:
    """Write a project with a Step for each name, alike but for its tables."""
    files = {}
    entries = ["- table: stage.customers\n  processor: source\n"]
    for name in names:
        entries.append(
            f"- table: ours.{name}\n"
            f"  depends_on: [stage.{name}_ours, stage.customers]\n"
            f"  transforms: [{name}]\n"
            f"  maxstep: 100000000\n"
            f"- table: stage.{name}_ours\n"
            f"  processor: source\n"
        )
        files[f"views/{name}.sql"] = (
            "SELECT o.pos, o.id, o.customer_id, c.segment, o.amount"
            f" FROM stage.{name}_ours o"
            " LEFT JOIN stage.customers c ON c.customer_id = o.customer_id"
            " WHERE block(o.pos, o.id)"
        )
    return {"lineage.yaml": "".join(entries), **files}
