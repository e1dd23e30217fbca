"""How many executions a second go through the whole protocol when nothing is to be done in them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.bed import Options, judge, processor_seconds
from benchmarks.celery_peer import Rate, celery_rate
from benchmarks.crew import Place, process
from tidegate.cli.output import print_table
from tidegate.model.execution import ExecutionState
from tidegate.model.lineage import Definition, Processor
from tidegate.runtime import RealRuntime
from tidegate.store import SqlStore, open_store
from tidegate.store.schema import etl_executions, etl_phase_executions

WARM_SECONDS = 5.0
MEASURED_SECONDS = 20.0


def no_op_executions(options: Options) -> None:
    """Count executions that the store knows the end of, over some seconds of a steady run.

    One process is the manager, another the worker with all slots: the real ones, over SQLite with
    fsync and the embedded bus. Each topic always has a row to take, its block is found without a
    lake and loaded without Spark; all else is as ever. The peer is Celery on Redis, with as many
    tasks at once and results kept, in the same minute. What both cost of a processor says more than
    the rates where others are at work, too.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        ours = measure(Place(Path(folder)), options.instances)
    peer = celery_rate(options.instances)
    sides = {"ours": ours, "Celery on Redis": peer}
    lines = [
        (name, options.instances, rate.per_second, rate.processor_ms)
        for name, rate in sides.items()
        if rate is not None
    ]
    print_table(("who", "at once", "a second", "processor's ms each"), lines, empty="")
    judge("executions a second", ours.per_second, 1000, least=True)
    if peer is not None:
        judge("times Celery on Redis", ours.per_second / peer.per_second, 2, least=True)


def measure(place: Place, instances: int) -> Rate:
    """Let a manager and a worker work, and give what they bring to an end in a second."""
    prepare(place, instances)
    with process("manager", place) as manager, process("worker", place, instances) as worker:
        store = open_store(place.url)
        time.sleep(WARM_SECONDS)
        before, begin = _counts(store), time.perf_counter()
        used = processor_seconds(manager.pid, worker.pid)
        time.sleep(MEASURED_SECONDS)
        after, spent = _counts(store), time.perf_counter() - begin
        used = processor_seconds(manager.pid, worker.pid) - used
        failed = store.executions.list(state=ExecutionState.FAILED, limit=1)
        store.close()
    if failed:
        raise SystemExit(f"{failed[0].topic} failed: {failed[0].comment}")
    done = {name: after[name] - before[name] for name in after}
    if not done["executions"] <= done["streams"] / 3 or done["blocks"] < done["executions"] / 2:
        raise SystemExit(f"not all of it is in the store: {done}")
    return Rate(done["executions"] / spent, used / done["executions"] * 1000)


def prepare(place: Place, topics: int) -> None:
    """Apply as many topics as there are instances, each on a landed table of its own."""
    store = open_store(place.url)
    definitions = [
        Definition(f"fact.t{n}", Processor.STEP, (f"stage.s{n}",), transforms=("a",), repeat=0)
        for n in range(topics)
    ]
    store.lineages.apply(definitions, [], "bench", RealRuntime().now())
    store.close()


def _counts(store: SqlStore) -> Mapping[str, int]:
    """Count what has come to its end, with its position moved and its streams told."""
    finished = select(func.count()).where(etl_executions.c.state == "finished")
    streams = select(func.count()).select_from(etl_phase_executions)
    moved = store.offsets.all().values()
    return {
        "executions": store.reader.plain(finished)[0][0],
        "streams": store.reader.plain(streams)[0][0],
        "blocks": sum(offset.seq for offset in moved),
    }
