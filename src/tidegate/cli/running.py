"""`run`, `view`, `explain` and `retry`: work done now, in the foreground."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.opening import known_topic, opened, user
from tidegate.cli.output import Json, complain, print_json, print_table
from tidegate.cli.project import apply_changes, changes_of

if TYPE_CHECKING:
    from tidegate.model.execution import Execution
    from tidegate.services.foreground import Report, Watcher
    from tidegate.wiring import Parts


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(view)
    app.command()(explain)
    app.command()(retry)


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
    from tidegate.cli.progress import watcher
    from tidegate.errors import WrongUse
    from tidegate.model.lineage import select as selected

    with opened(context) as parts:
        try:
            topics = selected(parts.project.definitions, select or [])
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
    with parts.spark() as spark:
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
        if execution.flow_kind == "care":
            continue
        by_topic.setdefault(execution.topic, []).append(execution)
    rows = []
    for topic, executions in by_topic.items():
        count = sum(execution.rows or 0 for execution in executions)
        seconds = sum(map(_seconds, executions))
        speed = round(count / seconds) if seconds else None
        rows.append((topic, len(executions), count, seconds, speed, executions[-1].state.value))
    columns = ("topic", "blocks", "rows", "seconds", "rows/s", "state")
    print_table(columns, rows, empty="Nothing was due.")
    if report.not_due:
        print()
        print_table(("not due", "why"), report.not_due.items(), empty="")
    sys.stdout.flush()
    for execution in report.executions:
        if execution.state == "failed":
            complain(f"{execution.topic}: {execution.comment}")


View = Annotated[str, typer.Argument(help="A view of the project.")]
Last = Annotated[str | None, typer.Option(help="POS,ID: rows behind it.")]
Next = Annotated[str | None, typer.Option(help="POS,ID: rows up to it.")]
Whose = Annotated[str | None, typer.Option(help="Whose view it is, if several use it.")]


def view(
    context: typer.Context,
    name: View,
    last: Last = None,
    next: Next = None,
    topic: Whose = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 20,
    json: Json = False,
) -> None:
    """Show what a view gives for a block; starts a JVM, writes nothing."""
    from tidegate.cli.previews import Asked, preview

    with opened(context) as parts, parts.spark() as spark:
        columns, rows = preview(parts, spark, Asked(name, topic, last, next), limit)
        if json:
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows, empty="The view gives no row for this block.")


def explain(
    context: typer.Context,
    name: View,
    last: Last = None,
    next: Next = None,
    topic: Whose = None,
    json: Json = False,
) -> None:
    """Show how Spark would read a view for a block; starts a JVM, reads no row."""
    from tidegate.cli.previews import Asked, plan_of

    with opened(context) as parts, parts.spark() as spark:
        plan = plan_of(parts, spark, Asked(name, topic, last, next))
    if json:
        print_json({"view": name, "plan": plan})
    else:
        print(plan)


def retry(context: typer.Context, topic: str) -> None:
    """Try the rows that failed once more with the next run, the dead ones too."""
    with opened(context) as parts:
        waiting = parts.store.failures.retry(known_topic(parts, topic), parts.runtime.now())
        print(f"{topic}: the next run tries {waiting:,} {'row' if waiting == 1 else 'rows'} again.")
