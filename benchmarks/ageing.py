"""Whether a step still costs the same after thousands of them: logs, files and tables grow."""

from __future__ import annotations

import statistics
import time

from pyspark.sql import DataFrame

from benchmarks.bed import Bed, Options, bench_bed, judge
from tidegate.cli.output import print_table

_LINEAGE = "- {table: fact.a, depends_on: stage.a, transforms: a}\n"
_WARM, _SAMPLE = 20, 20


def many_steps(options: Options) -> None:
    """Take one small block after another; the bare side appends the same rows each time."""
    files = {
        "lineage.yaml": _LINEAGE,
        "views/a.sql": "SELECT pos, id FROM stage.a WHERE block(pos, id)",
    }
    bare: list[float] = []
    ours: list[float] = []
    with bench_bed(files) as bed:
        start = bed.parts.runtime.now() - 1_000_000_000
        for step in range(_WARM + options.steps):
            rows = bed.session.range(start + step * 100, start + (step + 1) * 100, 1, 1)
            rows = rows.selectExpr("id AS pos", "id")
            rows.write.format("delta").mode("append").save(bed.path("stage.a"))
            bare.append(_bare(bed, rows, step))
            begin = time.perf_counter()
            done = bed.run("fact.a")
            ours.append(time.perf_counter() - begin)
            if done != 100:
                raise SystemExit(f"step {step} took {done} rows")
    sample = min(_SAMPLE, max(1, options.steps // 2))
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
