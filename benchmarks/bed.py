"""What every benchmark stands on: a project in a scratch folder, one warm Spark, figures judged."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tidegate.cli.project import apply_changes, changes_of
from tidegate.cli.running import NoProgress
from tidegate.model.execution import ExecutionState
from tidegate.spark.session import SparkHost
from tidegate.tables.graph import select
from tidegate.wiring import Parts, open_parts, read_project


@dataclass(frozen=True)
class Options:
    """The sizes of the benchmarks, as asked for."""

    rows: int
    few: int
    repeats: int
    files: int
    topics: int
    steps: int
    instances: int


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


@dataclass(frozen=True)
class Bed:
    """A project that is open, and the Spark that both sides use."""

    parts: Parts
    spark: SparkHost
    session: SparkSession

    def run(self, *selectors: str) -> int:
        """Run what is due, as `tidegate run` does, and give the rows; a failure ends it all."""
        topics = select(self.parts.topics, selectors)
        report = self.parts.foreground(self.spark, NoProgress()).run(topics)
        for execution in report.executions:
            if execution.state is not ExecutionState.FINISHED:
                raise SystemExit(f"{execution.topic} is {execution.state}: {execution.comment}")
        return sum(execution.rows or 0 for execution in report.executions)

    def path(self, table: str) -> str:
        return self.parts.tables.path(table)


@contextmanager
def bench_bed(files: Mapping[str, str]) -> Iterator[Bed]:
    """Make a project of these files, and open it with a warm Spark."""
    with bench_parts(files) as parts, parts.spark() as spark:
        yield Bed(parts, spark, spark.fresh())


@contextmanager
def bench_parts(files: Mapping[str, str]) -> Iterator[Parts]:
    """Make a project of these files, and open it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for name, text in {"tidegate.toml": "", **files}.items():
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        project = read_project(Path(folder))
        project.require_sound()
        with open_parts(project) as parts:
            apply_changes(parts, changes_of(parts))
            yield parts


def land(path: str, pos: Sequence[int], id: Sequence[int]) -> None:
    """Append rows to a table without Spark."""
    columns = {"pos": pa.array(pos, pa.int64()), "id": pa.array(id, pa.int64())}
    write_deltalake(path, pa.table(columns), mode="append")


def judge(figure: str, found: float, target: float, *, least: bool = False) -> None:
    """Hold a figure against its target, which it must not pass, or must reach."""
    met = found >= target if least else found <= target
    sign = "at least" if least else "at most"
    print(f"{figure}: {found:.2f}, target {sign} {target:g}: {'met' if met else 'NOT met'}")


def machine() -> str:
    """Describe where the figures were taken."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB, load {os.getloadavg()[0]:.1f}"


def _processor_seconds() -> float:
    """Give the processor time that this process's children, so its JVM, have used."""
    return processor_seconds(*children_of(os.getpid()))


def children_of(pid: int) -> list[int]:
    """Name the processes that a process's first thread has started."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def processor_seconds(*pids: int) -> float:
    """Give the processor time that living processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
