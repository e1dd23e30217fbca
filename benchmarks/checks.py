"""What checks cost where every row passes them: the same Step, with and without."""

from __future__ import annotations

import statistics

from benchmarks.bed import Options, Seconds, bench_bed, judge
from tidegate.cli.output import print_table

_STEP = "- {{table: fact.{0}, depends_on: stage.rows, transforms: {0}, maxstep: 100000000{1}}}\n"
_CHECKS = ", checks: {amount: amount >= 0, known: customer_id IS NOT NULL}"
_VIEW = "SELECT pos, id, customer_id, amount FROM stage.rows WHERE block(pos, id)"


def clean_checks(options: Options) -> None:
    """Print the times of both; they take turns at going first."""
    files = {
        "lineage.yaml": _STEP.format("plain", "") + _STEP.format("checked", _CHECKS),
        "views/plain.sql": _VIEW,
        "views/checked.sql": _VIEW,
    }
    times = {"plain": Seconds(), "checked": Seconds()}
    with bench_bed(files) as bed:
        start = bed.parts.runtime.now() - 1_000_000_000
        for turn in range(max(3, options.repeats // 2) + 1):
            first = turn * options.rows
            rows = bed.session.range(first, first + options.rows, 1, 4).selectExpr(
                f"{start} + id AS pos", "id", "id % 20000 AS customer_id", "id % 997 AS amount"
            )
            rows.write.format("delta").mode("append").save(bed.path("stage.rows"))
            for name in sorted(times, reverse=bool(turn % 2)):
                with (times[name] if turn else Seconds()).turn():
                    done = bed.run(f"fact.{name}")
                if done != options.rows:
                    raise SystemExit(f"fact.{name} took {done} rows, not {options.rows}")
    plain, checked = (statistics.median(times[name].clock) for name in ("plain", "checked"))
    line = (options.rows, plain, checked, checked / plain)
    print_table(("rows", "without checks s", "with checks s", "ratio"), [line], empty="")
    judge("checks ratio", checked / plain, 1.2)
