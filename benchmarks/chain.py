"""A hundred small topics, twenty wide and five deep, against their bare writes back to back."""

from __future__ import annotations

from benchmarks.bed import Bed, Options, Seconds, bench_bed, judge
from tidegate.cli.output import print_table

WIDE, DEEP = 20, 5


def chain_of_topics(options: Options) -> None:
    """Print both times; the first turn only warms."""
    times = {"bare": Seconds(), "ours": Seconds()}
    with bench_bed(_files()) as bed:
        start = bed.parts.runtime.now() - 1_000_000_000
        for turn in range(2):
            first = start + turn * options.few
            rows = bed.session.range(first, first + options.few, 1, 1)
            for side in ("bare", "ours"):
                landed = rows.selectExpr("id AS pos", "id")
                landed.write.format("delta").mode("append").save(bed.path(f"stage.{side}"))
            with (times["ours"] if turn else Seconds()).turn():
                done = bed.run()
            if done != options.few * WIDE * DEEP:
                raise SystemExit(f"{done} rows were taken in all")
            with (times["bare"] if turn else Seconds()).turn():
                _write_bare(bed, first, turn)
    bare, ours = times["bare"].clock[0], times["ours"].clock[0]
    line = (WIDE * DEEP, options.few, bare, ours, bare / ours)
    print_table(("topics", "rows each", "bare s", "ours s", "speed"), [line], empty="")
    judge("speed against bare writes", bare / ours, 0.8, least=True)


def _files() -> dict[str, str]:
    files, entries = {}, []
    for wide in range(WIDE):
        base = "stage.ours"
        for deep in range(DEEP):
            name = f"t{wide}_{deep}"
            entries.append(f"- {{table: ours.{name}, depends_on: {base}, transforms: {name}}}\n")
            files[f"views/{name}.sql"] = f"SELECT pos, id FROM {base} WHERE block(pos, id)"
            base = f"ours.{name}"
    return {"lineage.yaml": "".join(entries), **files}


def _write_bare(bed: Bed, first: int, turn: int) -> None:
    for wide in range(WIDE):
        base = "stage.bare"
        for deep in range(DEEP):
            rows = bed.session.read.format("delta").load(bed.path(base)).where(f"pos >= {first}")
            base = f"bare.t{wide}_{deep}"
            options = {"txnAppId": "by hand", "txnVersion": str(turn + 1), "userMetadata": "{}"}
            writer = rows.write.format("delta").mode("append").options(**options)
            writer.save(bed.path(base))
