"""`run`: work done now, in the foreground, with bars or lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.output import Json, complain, opened, print_json, print_table, user
from tidegate.cli.project import apply_changes, changes_of
from tidegate.model.execution import ExecutionState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from tidegate.model.execution import Execution
    from tidegate.ports.kinds import Report, Watcher
    from tidegate.wiring import Parts


@contextmanager
def watcher(*, quiet: bool) -> Iterator[Watcher]:
    """Choose by where the output goes: JSON readers get nothing, terminals bars, others lines."""
    from rich.console import Console

    console = Console(file=sys.stderr)
    if quiet and not console.is_terminal:
        yield NoProgress()
    elif console.is_terminal:
        with Bars(console) as bars:
            yield bars
    else:
        yield Lines()


_ROWS_THAT_TELL = 1_000
_SECONDS_THAT_TELL = 1.0


def rate_of(rows: int, seconds: float) -> int | None:
    """Give rows a second; None for a load so small that it tells of the start alone."""
    tells = rows >= _ROWS_THAT_TELL and seconds >= _SECONDS_THAT_TELL
    return round(rows / seconds) if tells else None


class NoProgress:
    """Shows nothing."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def maintained(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


class Lines:
    """A line for each block, as it ends."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None:
        rows = execution.rows or 0
        seconds = _seconds(execution)
        if execution.state is ExecutionState.FINISHED:
            rate = rate_of(rows, seconds)
            shown = f", {rate:,} rows/s" if rate is not None else ""
            counted = f"{rows:,} {'row' if rows == 1 else 'rows'}"
            print(f"{execution.topic}: {counted} in {seconds:.1f} s{shown}", flush=True)
        else:
            print(f"{execution.topic}: {execution.state} after {seconds:.1f} s", flush=True)

    def maintained(self, execution: Execution) -> None:
        print(f"{execution.topic}: {execution.comment}", flush=True)

    def refused(self, topic: str, why: str) -> None:
        print(f"{topic}: left alone, {why}", flush=True)


class Bars:
    """A bar for each topic: the rows it took of those that were waiting."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

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
        rows = execution.rows or 0
        # Done by others, it may have come and gone before anybody saw it start.
        self.started(execution.topic, rows)
        bar = self._bars[execution.topic]
        rate = rate_of(rows, _seconds(execution))
        shown = f"{rate:,}/s" if rate is not None else ""
        if execution.state is not ExecutionState.FINISHED:
            shown = str(execution.state)
        self._progress.update(bar, advance=rows, rate=shown)
        task = next(task for task in self._progress.tasks if task.id == bar)
        if task.total is None or task.completed > task.total:
            self._progress.update(bar, total=task.completed)

    def maintained(self, execution: Execution) -> None:
        self._say(f"{execution.topic}: {execution.comment}")

    def refused(self, topic: str, why: str) -> None:
        self._say(f"{topic}: left alone, {why}")

    def _say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    context: typer.Context,
    select: Annotated[
        list[str] | None,
        typer.Argument(help="Topics: fact.orders, fact.*, +fact.orders with all it depends on."),
    ] = None,
    json: Json = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="On a shared store: apply changed definitions first.")
    ] = False,
) -> None:
    """Run what is due until nothing is: `delay` counts, `repeat` does not."""
    from tidegate.errors import WrongUse
    from tidegate.tables.graph import select as selected

    with opened(context) as parts:
        try:
            topics = selected(parts.topics, select or [])
        except ValueError as error:
            raise WrongUse(str(error)) from None
        apply_first(parts, apply)
        with watcher(quiet=json) as watching:
            report = _run(parts, topics, watching)
        print_report(report, json=json)
    if report.failed:
        raise typer.Exit(1)


def _run(parts: Parts, topics: set[str], watching: Watcher) -> Report:
    """Run here, or have it run by the manager where one leads."""
    if parts.is_managed():
        return parts.delegate(watching, user()).run(topics)
    with parts.spark(quick=parts.reads_little(topics)) as spark:
        return parts.foreground(spark, watching).run(topics)


def apply_first(parts: Parts, asked: bool) -> None:
    """Apply changed definitions; on a store that others may share, only when asked to."""
    from tidegate.errors import WrongUse

    changes = changes_of(parts)
    if not changes:
        return
    shared = not parts.project.settings.store.url.startswith("sqlite:")
    if shared and not asked:
        raise WrongUse(
            "the project differs from what is applied in the shared store; look at it with"
            " `tidegate apply --dry-run`, then `tidegate apply`, or run with --apply:\n  "
            + "\n  ".join(changes.lines())
        )
    apply_changes(parts, changes)


def print_report(report: Report, *, json: bool) -> None:
    """Tell what ran, and why the rest did not."""
    (_print_json if json else _print_report)(report)
    if report.cut_short:
        complain(report.cut_short)


def _print_json(report: Report) -> None:
    print_json(
        {
            "executions": [_row(execution) for execution in report.executions],
            "not_due": [{"topic": topic, "why": why} for topic, why in report.not_due.items()],
        }
    )


def _row(execution: Execution) -> dict[str, object]:
    return {
        "id": execution.id,
        "flow": execution.flow_id,
        "kind": execution.flow_kind,
        "operation": execution.operation,
        "state": execution.state.value,
        "rows": execution.rows or 0,
        "seconds": _seconds(execution),
        "comment": execution.comment,
    }


def _seconds(execution: Execution) -> float:
    if execution.started_at is None or execution.finished_at is None:
        return 0.0
    return (execution.finished_at - execution.started_at) / 1000


def _print_report(report: Report) -> None:
    by_topic: dict[str, list[Execution]] = {}
    for execution in report.executions:
        if not execution.operation.moves:
            continue
        by_topic.setdefault(execution.topic, []).append(execution)
    rows = []
    for topic, executions in by_topic.items():
        count = sum(execution.rows or 0 for execution in executions)
        seconds = sum(map(_seconds, executions))
        speed = rate_of(count, seconds)
        state = executions[-1].state.value
        rows.append(
            {
                "topic": topic,
                "blocks": len(executions),
                "rows": count,
                "seconds": seconds,
                "rows/s": speed,
                "state": state,
            }
        )
    columns = ["topic", "blocks", "rows", "seconds", "rows/s", "state"]
    if not any(row["rows/s"] for row in rows):
        columns.remove("rows/s")
    shown = [[row[name] for name in columns] for row in rows]
    print_table(columns, shown, empty="Nothing was due.")
    if report.not_due:
        print()
        print_table(("not due", "why"), report.not_due.items(), empty="")
    sys.stdout.flush()
    for execution in report.executions:
        if execution.state == "failed":
            complain(f"{execution.topic}: {execution.comment}")
