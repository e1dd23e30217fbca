"""How many executions a second go through the whole protocol when nothing is to be done in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.bed import Options, judge
from benchmarks.celery_peer import celery_per_second
from benchmarks.idle_lake import IdleLake
from tidegate.bus import open_bus
from tidegate.cli.output import print_table
from tidegate.holders import FlockHolders
from tidegate.model.lineage import Definition, Processor
from tidegate.model.pace import Pace
from tidegate.runtime import RealRuntime
from tidegate.services.executor import Executor
from tidegate.services.lifecycle import Lifecycle
from tidegate.services.manager import Manager
from tidegate.services.reporter import BusReporter
from tidegate.services.worker import Identity, Worker
from tidegate.settings import BusSettings
from tidegate.store import SqlStore, open_store
from tidegate.store.schema import etl_executions, etl_phase_executions

WARM_SECONDS = 5.0
MEASURED_SECONDS = 20.0


@dataclass(frozen=True)
class Place:
    """A folder with a store and the locks of those who work there."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"


def no_op_executions(options: Options) -> None:
    """Count executions that the store knows the end of, over some seconds of a steady run.

    One process is the manager, another the worker with its slots: the real ones, over SQLite with
    fsync and the embedded bus. Each topic always has a row to take, its block is found without a
    lake and loaded without Spark; all else is as ever. The peer is Celery on Redis, with as many
    tasks at once and results kept, in the same minute.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        counts = measure(Place(Path(folder)), options.instances)
    peer = celery_per_second(options.instances)
    shown = "none" if peer is None else f"{peer:,.0f}"
    line = (options.instances, counts["executions"], counts["streams"], shown)
    print_table(("instances", "executions/s", "streams/s", "Celery tasks/s"), [line], empty="")
    judge("executions a second", counts["executions"], 1000, least=True)
    if peer is not None:
        judge("times Celery on Redis", counts["executions"] / peer, 2, least=True)


def measure(place: Place, instances: int) -> Mapping[str, float]:
    """Let a manager and a worker work, and give what they bring to an end in a second."""
    prepare(place, instances)
    with _process(place, "manager", instances), _process(place, "worker", instances):
        store = open_store(place.url)
        time.sleep(WARM_SECONDS)
        before, begin = _counts(store), time.perf_counter()
        time.sleep(MEASURED_SECONDS)
        after, spent = _counts(store), time.perf_counter() - begin
        store.close()
    return {name: (after[name] - before[name]) / spent for name in after}


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


@contextmanager
def _process(place: Place, role: str, instances: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.executions", role, str(place.folder)]
    with subprocess.Popen([*command, str(instances)], start_new_session=True) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def serve(role: str, place: Place, instances: int) -> None:
    """Be one of the two processes, until killed."""
    runtime, life = RealRuntime(), Lifecycle()
    holders = FlockHolders(place.folder / "locks", runtime)
    holders.hold()
    store = open_store(place.url)
    bus = open_bus(BusSettings(), place.url, store.messages, runtime.now)
    lake, pace = IdleLake(runtime), Pace()
    if role == "manager":
        Manager(store, bus, lake, holders, runtime, pace, life).serve()
        return
    reporter = BusReporter(bus, runtime)
    executor = Executor(
        store,
        lake,
        {Processor.STEP: lake},
        lake,
        holders,
        runtime,
        reporter,
        pace.pause_after,
        lambda: True,
    )
    host, pid, _ = holders.me.split(":")
    Worker(
        Identity("bench", host, int(pid), holders.me),
        instances,
        store,
        bus,
        executor,
        reporter,
        runtime,
        pace,
        life,
        lives=lambda: True,
        tidy=lambda _: None,
    ).serve()


def main(arguments: Sequence[str]) -> None:
    role, folder, instances = arguments
    serve(role, Place(Path(folder)), int(instances))


if __name__ == "__main__":
    main(sys.argv[1:])
