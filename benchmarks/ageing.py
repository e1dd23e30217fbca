"""Whether a step still costs the same after thousands of them: logs, files and tables grow."""

from __future__ import annotations

import statistics
import time

from pyspark.sql import DataFrame

from benchmarks.bed import Bed, Options, bench_bed, judge, land
from tidegate.cli.output import print_table

_LINEAGE = "- {table: fact.a, depends_on: stage.a, transforms: a}\n"
_WARM, _SAMPLE, _ROWS = 20, 20, 100


def many_steps(options: Options) -> None:
    """Take one small block after another, and hold the last ones against the first warm ones.

    The bare side appends the same rows by hand beside those that are compared: it says how much
    the machine itself has changed in between. Rows land without Spark, which halves the time.
    """
    files = {
        "lineage.yaml": _LINEAGE,
        "views/a.sql": "SELECT pos, id FROM stage.a WHERE block(pos, id)",
    }
    sample = min(_SAMPLE, max(1, options.steps // 2))
    last = options.steps + _WARM
    compared = {*range(_WARM, _WARM + sample), *range(last - sample, last)}
    bare: list[float] = []
    ours: list[float] = []
    with bench_bed(files) as bed:
        start = bed.parts.runtime.now() - 1_000_000_000
        for step in range(last):
            first = start + step * _ROWS
            numbers = range(first, first + _ROWS)
            land(bed.path("stage.a"), numbers, numbers)
            if step < _WARM or step in compared:
                rows = bed.session.range(first, first + _ROWS, 1, 1).selectExpr("id AS pos", "id")
                bare.append(_bare(bed, rows, step))
            begin = time.perf_counter()
            done = bed.run("fact.a")
            ours.append(time.perf_counter() - begin)
            if done != _ROWS:
                raise SystemExit(f"step {step} took {done} rows")
    lines = [
        (name, *_medians(seconds, sample)) for name, seconds in (("bare", bare), ("ours", ours))
    ]
    columns = ("steps", "first warm ones s", f"after {options.steps:,} s", "ratio")
    print_table(columns, lines, empty="")
    judge("growth of a step", lines[1][3], 1.3)


def _bare(bed: Bed, rows: DataFrame, step: int) -> float:
    options = {"txnAppId": "by hand", "txnVersion": str(step + 1), "userMetadata": "{}"}
    begin = time.perf_counter()
    rows.write.format("delta").mode("append").options(**options).save(bed.path("bare.a"))
    return time.perf_counter() - begin


def _medians(seconds: list[float], sample: int) -> tuple[float, float, float]:
    first = statistics.median(seconds[_WARM : _WARM + sample])
    last = statistics.median(seconds[-sample:])
    return first, last, last / first
