"""How many executions a second go through the whole protocol when nothing is to be done in them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.bed import Options, judge, processor_seconds
from benchmarks.celery_peer import Rate, celery
from benchmarks.crew import Place, process
from tidegate.cli.output import print_table
from tidegate.model.execution import ExecutionState
from tidegate.runtime import RealRuntime
from tidegate.store import SqlStore
from tidegate.store.schema import etl_executions, etl_phase_executions
from tidegate.tables.definition import Processor, TableDefinition

WORKERS = 2
ROUNDS = 5
WARM_SECONDS = 5.0
MEASURED_SECONDS = 10.0


def no_op_executions(options: Options) -> None:
    """Count executions that the store knows the end of, over some seconds of a steady run.

    One process is the manager, two are workers with half of the slots each, over SQLite with
    fsync and the embedded bus. Each topic always has a row to take, its block is found without a
    lake and loaded without Spark; all else is as ever. The peer is Celery on Redis, with as many
    tasks at once and results kept, in the same minute. What both cost of a processor says more than
    the rates where others are at work, too.
    """
    ours, peers = list[Rate](), list[Rate]()
    # In turns: what others do to the machine meanwhile is then done to both.
    with celery(options.instances) as peer:
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
                ours.append(measure(Place(Path(folder)), options.instances))
            if peer is not None:
                peers.append(peer())
    lines = [
        (name, options.instances, len(rates), *_spread(rates))
        for name, rates in (("ours", ours), ("Celery on Redis", peers))
        if rates
    ]
    columns = ("who", "at once", "rounds", "a second", "least", "most", "processor's ms each")
    print_table(columns, lines, empty="")
    judge("executions a second", _median(ours), 1000, least=True)
    if peers:
        pairs = zip(ours, peers, strict=True)
        ratios = [mine.per_second / other.per_second for mine, other in pairs]
        print("times Celery, round by round: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))
        judge("times Celery on Redis", statistics.median(ratios), 2, least=True)


def _median(rates: Sequence[Rate]) -> float:
    return statistics.median(rate.per_second for rate in rates)


def _spread(rates: Sequence[Rate]) -> tuple[float, float, float, float]:
    found = [rate.per_second for rate in rates]
    each = statistics.median(rate.processor_ms for rate in rates)
    return _median(rates), min(found), max(found), each


def measure(place: Place, instances: int) -> Rate:
    """Let a manager and a worker work, and give what they bring to an end in a second."""
    prepare(place, instances)
    with ExitStack() as stack:
        started = [stack.enter_context(process("manager", place))]
        for worker in range(WORKERS):
            slots = instances // WORKERS
            started.append(stack.enter_context(process("worker", place, slots, _tag(worker))))
        pids = [one.pid for one in started]
        store = place.open_store()
        time.sleep(WARM_SECONDS)
        before, begin = _counts(store), time.perf_counter()
        used = processor_seconds(*pids)
        time.sleep(MEASURED_SECONDS)
        after, spent = _counts(store), time.perf_counter() - begin
        used = processor_seconds(*pids) - used
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
    store = place.open_store()
    definitions = [
        TableDefinition(
            f"fact.t{n}",
            Processor.STEP,
            (f"stage.s{n}",),
            transforms=("a",),
            repeat=0,
            # Each worker knows only of its own blocks, as there is no lake to look into.
            worker_tags=(_tag(n),),
        )
        for n in range(topics)
    ]
    store.definitions.apply(definitions, [], "bench", RealRuntime().now())
    store.close()


def _tag(number: int) -> str:
    return f"worker{number % WORKERS}"


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
