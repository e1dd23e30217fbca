"""`lag` and `why`: how fresh every table is, and what keeps it from being fresher."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.opening import opened
from tidegate.cli.output import Json, print_json, print_json_lines, print_table, table_of

if TYPE_CHECKING:
    from tidegate.model.execution import Offset
    from tidegate.model.failed import FailedState
    from tidegate.model.lineage import Definition
    from tidegate.model.plan import Plan
    from tidegate.wiring import Parts


def register(app: typer.Typer) -> None:
    app.command()(lag)
    app.command()(why)


_COLUMNS = ("topic", "processor", "state", "due", "complete to", "lag", "rows", "failed", "why")
_EMPTY = "The project has no topics yet; write them into lineage.yaml."


def lag(
    context: typer.Context,
    json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep looking, until ctrl-C; JSON lines with --json.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show every topic: how far it is, how far behind, and why. Writes nothing, starts no JVM."""
    with opened(context) as parts:
        if watch:
            with suppress(KeyboardInterrupt):
                _watch(parts, every, json=json)
        elif json:
            print_json(_lag_rows(parts))
        else:
            print_table(_COLUMNS, map(_shown, _lag_rows(parts)), empty=_EMPTY)


def _watch(parts: Parts, every: float, *, json: bool) -> None:
    """Look again and again; the store may be written and tables may land meanwhile."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    if json or not console.is_terminal:
        while True:
            if json:
                print_json_lines([_lag_rows(parts)])
            else:
                print_table(_COLUMNS, map(_shown, _lag_rows(parts)), empty=_EMPTY)
            parts.runtime.sleep(every)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table_of(_COLUMNS, map(_shown, _lag_rows(parts))), refresh=True)
            parts.runtime.sleep(every)


def _lag_rows(parts: Parts) -> list[dict[str, Any]]:
    plan = parts.lookout().plan(eager=False)
    offsets, failed = parts.store.offsets.all(), parts.store.failures.counts()
    return [
        _lag_row(
            plan,
            topic,
            parts.project.definitions[topic],
            offsets.get(topic),
            failed.get(topic, {}),
        )
        for topic in plan.verdicts
    ]


def _shown(row: dict[str, Any]) -> tuple[object, ...]:
    failed = [f"{row[state]:,} {state}" for state in ("waiting", "dead") if row[state]]
    return (
        *(row[name] for name in ("topic", "processor", "state", "due", "complete_to")),
        _behind(row["lag_seconds"]),
        row["rows"],
        ", ".join(failed) or None,
        row["why"],
    )


def _lag_row(
    plan: Plan,
    topic: str,
    definition: Definition,
    offset: Offset | None,
    failed: Mapping[FailedState, int],
) -> dict[str, Any]:
    from tidegate.model.execution import Offset
    from tidegate.model.failed import FailedState
    from tidegate.model.position import START, rfc3339

    verdict = plan.verdicts[topic]
    at = offset or Offset(topic, START)
    return {
        "topic": topic,
        "processor": definition.processor.value,
        "state": at.state.value,
        "due": verdict.due,
        "last": [at.last.pos, at.last.id],
        "next": [at.next.pos, at.next.id] if at.next else None,
        "complete_to": _time(verdict.complete_to),
        "lag_seconds": _seconds_behind(plan, verdict.complete_to),
        "rows": at.rows,
        "run": rfc3339(at.run) if at.run is not None else None,
        "hostid": at.hostid,
        "waiting": failed.get(FailedState.WAITING, 0),
        "dead": failed.get(FailedState.DEAD, 0),
        "stale": at.stale,
        "held_back_by": verdict.held_back_by,
        "why": verdict.why,
    }


def why(context: typer.Context, topic: str, json: Json = False) -> None:
    """Say why a topic is not fresher, down to the table that is at fault."""
    from tidegate.errors import UnknownName

    with opened(context) as parts:
        plan = parts.lookout().plan(eager=False)
    if topic not in plan.verdicts:
        names = ", ".join(plan.verdicts) or "none"
        raise UnknownName(f"there is no topic {topic!r} to build; there are: {names}")
    verdict = plan.verdicts[topic]
    chain = [_link(plan, name) for name in plan.chain(topic)]
    if json:
        print_json({"topic": topic, "due": verdict.due, "why": verdict.why, "chain": chain})
        return
    for depth, link in enumerate(chain):
        name = link["topic"]
        reason = plan.verdicts[name].why if name in plan.verdicts else "written by others"
        behind = _behind(link["behind_seconds"])
        print(f"{'  ' * depth}{'└ ' if depth else ''}{name}: {reason} [{behind} behind]")


def _link(plan: Plan, name: str) -> dict[str, Any]:
    known = plan.verdicts.get(name) or plan.tables[name]
    return {
        "topic": name,
        "complete_to": _time(known.complete_to),
        "behind_seconds": _seconds_behind(plan, known.complete_to),
    }


def _time(milliseconds: int) -> str | None:
    from tidegate.model.position import rfc3339

    return rfc3339(milliseconds) if milliseconds > 0 else None


def _seconds_behind(plan: Plan, complete_to: int) -> float | None:
    """Give the lag; a table that never had a row has none that could be told."""
    return max(0, plan.now - complete_to) / 1000 if complete_to > 0 else None


def _behind(seconds: float | None) -> str:
    from tidegate.model.duration import format_duration

    return "–" if seconds is None else format_duration(round(seconds * 1000))
