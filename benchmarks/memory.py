"""Whether the driver's memory stays flat as blocks grow: what matters must not be collected.

Measured after each load: the resident memory of this Python process, and what is in use of the
JVM's heap after it was collected. Both sides run in one JVM, so the bare write of the same rows is
measured just before.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.bed import Bed, Options, bench_bed, judge
from tidegate.cli.output import print_table

_LINEAGE = "- {table: fact.a, depends_on: stage.a, transforms: a, maxstep: 100000000}\n"
_COLUMNS = ("rows of the block", "python MB", "JVM heap MB")


def flat_memory(options: Options) -> None:
    """Load one block of each size, the bare write of the same rows before it."""
    files = {
        "lineage.yaml": _LINEAGE,
        "views/a.sql": "SELECT pos, id, amount FROM stage.a WHERE block(pos, id)",
    }
    sizes = [options.rows // 10, options.rows, options.rows * 5, options.rows * 20]
    lines: list[tuple[str, float, float]] = []
    with bench_bed(files) as bed:
        landed = 0
        start = bed.parts.runtime.now() - 1_000_000_000
        for size in sizes:
            rows = bed.session.range(landed, landed + size).selectExpr(
                f"{start} + id AS pos", "id", "id % 997 AS amount"
            )
            rows.write.format("delta").mode("append").save(bed.path("stage.a"))
            landed += size
            bare = _megabytes(bed)
            if bed.run("fact.a") != size:
                raise SystemExit("the block has other rows")
            lines += [
                (f"{size:,}, written by hand", *bare),
                (f"{size:,}, a Step", *_megabytes(bed)),
            ]
    print_table(_COLUMNS, lines, empty="")
    # The first size only warms: classes are loaded and caches filled.
    small, large = lines[3], lines[-1]
    judge(f"python, {large[0]} over {small[0]}", large[1] / small[1], 1.2)
    judge(f"JVM heap, {large[0]} over {small[0]}", large[2] / small[2], 1.2)


def _megabytes(bed: Bed) -> tuple[float, float]:
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    jvm = bed.session._jvm
    if resident is None or jvm is None:
        raise SystemExit("this machine does not tell how much memory is in use")
    runtime = jvm.java.lang.Runtime.getRuntime()
    # What only weak references hold is free after the second.
    runtime.gc()
    runtime.gc()
    return int(resident[1]) / 1024, (runtime.totalMemory() - runtime.freeMemory()) / 2**20
