"""Shows a run while it goes on: bars with rate and time left, or plain lines off a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tidegate.model.execution import Execution, ExecutionState

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tidegate.services.foreground import Watcher


@contextmanager
def watcher(*, quiet: bool) -> Iterator[Watcher]:
    """Choose by where the output goes: JSON readers get nothing, terminals bars, others lines."""
    console = Console(file=sys.stderr)
    if quiet and not console.is_terminal:
        yield Silence()
    elif console.is_terminal:
        with Bars(console) as bars:
            yield bars
    else:
        yield Lines()


class Silence:
    """Shows nothing."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def tended(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


class Lines:
    """A line for each block, as it ends."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None:
        rows = execution.rows or 0
        seconds = ((execution.finished_at or 0) - (execution.started_at or 0)) / 1000
        if execution.state is ExecutionState.FINISHED:
            rate = f", {rows / seconds:,.0f} rows/s" if seconds else ""
            print(f"{execution.topic}: {rows:,} rows in {seconds:.1f} s{rate}", flush=True)
        else:
            print(f"{execution.topic}: {execution.state} after {seconds:.1f} s", flush=True)

    def tended(self, execution: Execution) -> None:
        print(f"{execution.topic}: {execution.comment}", flush=True)

    def refused(self, topic: str, why: str) -> None:
        print(f"{topic}: left alone, {why}", flush=True)


class Bars:
    """A bar for each topic: the rows it took of those that were waiting."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._settle()
        self._progress.stop()

    def _settle(self) -> None:
        """Let the bars of topics that are through end where they are: the rest has to wait."""
        for task in self._progress.tasks:
            self._progress.update(task.id, total=task.completed)

    def started(self, topic: str, rows_ahead: int) -> None:
        if topic not in self._bars:
            self._settle()
            total = rows_ahead or None
            self._bars[topic] = self._progress.add_task(topic, total=total, rate="")

    def ended(self, execution: Execution) -> None:
        bar = self._bars[execution.topic]
        seconds = ((execution.finished_at or 0) - (execution.started_at or 0)) / 1000
        rows = execution.rows or 0
        rate = f"{rows / seconds:,.0f}/s" if seconds else ""
        if execution.state is not ExecutionState.FINISHED:
            rate = str(execution.state)
        self._progress.update(bar, advance=rows, rate=rate)
        task = next(task for task in self._progress.tasks if task.id == bar)
        if task.total is None or task.completed > task.total:
            self._progress.update(bar, total=task.completed)

    def tended(self, execution: Execution) -> None:
        self._say(f"{execution.topic}: {execution.comment}")

    def refused(self, topic: str, why: str) -> None:
        self._say(f"{topic}: left alone, {why}")

    def _say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)
