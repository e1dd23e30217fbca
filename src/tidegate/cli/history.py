"""`executions`, `logs` and `etl-log`: what ran, what it said, what it measured."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.opening import known_topic, opened
from tidegate.cli.output import Json, print_json, print_json_lines, print_row, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.model.execution import Execution
    from tidegate.model.streams import Stream
    from tidegate.ports import LogRow

_FOLLOW_SECONDS = 1.0

Limit = Annotated[int | None, typer.Option(min=1, help="The newest so many.")]


def register(app: typer.Typer) -> None:
    app.command()(executions)
    app.command()(logs)
    app.command(name="etl-log")(etl_log)


class State(StrEnum):
    """The states to filter by."""

    assigned = "assigned"
    accepted = "accepted"
    running = "running"
    finished = "finished"
    failed = "failed"
    rejected = "rejected"
    lost = "lost"


def executions(
    context: typer.Context,
    id: Annotated[str | None, typer.Argument(help="Show this one whole.")] = None,
    flow: Annotated[str | None, typer.Option(help="Only those of this flow.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    from tidegate.errors import UnknownName
    from tidegate.model.execution import ExecutionState

    with opened(context) as parts:
        if id is not None:
            one = parts.store.executions.get(id)
            if one is None:
                raise UnknownName(f"there is no execution {id}")
            streams = [_stream(stream) for stream in parts.store.phases.of(id)]
            _print_one(_execution(one), streams, json=json)
            return
        wanted = ExecutionState(state.value) if state else None
        found = parts.store.executions.list(flow=flow, state=wanted, limit=limit)
    if json:
        print_json([_execution(one) for one in found])
        return
    rows = [
        (one.id, one.flow_id, one.state, one.attempt, one.rows, _time(one.assigned_at), one.comment)
        for one in found
    ]
    columns = ("id", "flow", "state", "attempt", "rows", "assigned at", "comment")
    print_table(columns, rows, empty="Nothing has run yet.")


def _print_one(row: dict[str, Any], streams: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json({**row, "phases": streams})
        return
    print_row(row)
    if streams:
        print()
        names = ("phase", "data_stream_name", "in", "out", "failed")
        totals = ("phase", "data_stream_name", *(f"total_{name}_messages" for name in names[2:]))
        print_table(names, [[stream[name] for name in totals] for stream in streams], empty="")


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "phase": stream.phase,
        "data_stream_name": stream.name,
        "instance_id": stream.instance_id,
        "stream_started_at": _time(stream.started_at),
        "stream_finished_at": _time(stream.finished_at),
        "stream_failed_at": _time(stream.failed_at),
        "comment": stream.comment,
        "total_in_messages": stream.total_in,
        "total_out_messages": stream.total_out,
        "total_failed_messages": stream.total_failed,
    }


def _execution(execution: Execution) -> dict[str, Any]:
    row = asdict(execution)
    row["state"] = execution.state.value
    for name in (name for name in row if name.endswith("_at")):
        row[name] = _time(row[name])
    return row


def logs(
    context: typer.Context,
    flow: Annotated[str, typer.Argument(help="A flow, such as a topic.")],
    latest: Annotated[
        bool, typer.Option("--latest", help="Only the latest entity of each _id.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as new ones come.")] = False,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """Show a flow's task execution dataset: every run's start, its end, its errors."""
    show = print_json_lines if json else _print_entities
    with opened(context) as parts:
        if flow not in parts.store.datasets.flows():
            known_topic(parts, flow)
        datasets = parts.store.datasets
        found = list(datasets.latest(flow) if latest else datasets.entities(flow))
        show(found[-limit:] if limit else found)
        while follow:
            since = found[-1]["_location"] + 1 if found else 0
            fresh = list(datasets.entities(flow, since=since))
            show(fresh)
            found = fresh or found
            time.sleep(_FOLLOW_SECONDS)


def _print_entities(entities: list[Mapping[str, Any]]) -> None:
    for entity in entities:
        at = entity.get("end_time") or entity.get("event_time") or entity.get("start_time") or ""
        what = entity["event_type"]
        told = ""
        if what == "task-completed":
            told = f"{entity['entities_succeeded']:,} rows"
            if entity["entities_failed"]:
                told += f", {entity['entities_failed']:,} failed"
        elif what == "write-error":
            tries = f" after {entity['retry_attempts']} tries" if entity["retry_attempts"] else ""
            told = f"{entity['entity']['_id']} {entity['state']}{tries}: {entity['exception']}"
        elif what == "task-failed":
            told = str(entity["reason_why_stopped"]).partition("\n")[0]
        line = f"{entity['_location']:>6}  {at}  {what:<15} {entity['task_instance']}  {told}"
        print(line.rstrip())


def etl_log(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="Only those of this topic.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """Show what each load measured of its own rows, the newest first."""
    with opened(context) as parts:
        if topic is not None:
            known_topic(parts, topic)
        found = [_log_row(row) for row in parts.store.journal.etl_log(topic, limit=limit)]
    if json:
        print_json(found)
        return
    columns = ("topic", "ts", "rows", "max_id", "min_ts", "max_ts", "max_lag", "figures", "nulls")
    rows = [[*(row[name] for name in columns[:-1]), _some(row["nulls"])] for row in found]
    print_table(columns, rows, empty="Nothing was loaded yet.")


def _some(nulls: dict[str, int] | None) -> dict[str, int] | None:
    """Leave out the columns without a null: people look for the others."""
    return {name: count for name, count in (nulls or {}).items() if count} or None


def _log_row(row: LogRow) -> dict[str, Any]:
    seen = row.measures
    return {
        "topic": row.topic,
        "ts": _time(row.ts),
        "rows": seen.rows,
        "max_id": seen.max_id,
        "min_ts": _time(seen.min_ts),
        "max_ts": _time(seen.max_ts),
        "max_lag": row.max_lag,
        "nulls": dict(seen.nulls) if seen.nulls is not None else None,
        "figures": dict(seen.figures) if seen.figures is not None else None,
        "query_id": seen.query_id,
        "execution_id": row.execution_id,
    }


def _time(milliseconds: int | None) -> str | None:
    from tidegate.model.position import rfc3339

    return None if milliseconds is None else rfc3339(milliseconds)
