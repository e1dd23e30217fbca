"""What people ask of any flow, and want of it: lag, why, status, executions, logs, pause and so on.

What is printed comes from `Insights`, which the API and the pages print from, too.
"""

from __future__ import annotations

import json as jsons
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.output import (
    Json,
    counted,
    known_topic,
    opened_to_look,
    print_json,
    print_json_lines,
    print_row,
    print_table,
    table_of,
    user,
)
from tidegate.cli.selecting import Selectors, selected
from tidegate.cli.serving import listed

if TYPE_CHECKING:
    from tidegate.control.insights import Insights
    from tidegate.model.instances import Instance
    from tidegate.ports.store import Datasets
    from tidegate.wiring import Parts


instances = typer.Typer(help="Who works: list them, give them work or none.", no_args_is_help=True)
Which = Annotated[str, typer.Argument(help="An instance's id, or a worker's name: all its slots.")]
INSTANCES = "instances"
"""The flow whose log tells of what was done by hand to instances."""


def register(app: typer.Typer) -> None:
    for command in (lag, why, status, executions, logs, pause, resume, cancel, execute):
        app.command()(command)
    app.add_typer(instances, name="instances")


_COLUMNS = (
    *("topic", "processor", "state", "due", "complete to", "lag"),
    *("last block", "failed", "why"),
)
_EMPTY = "The project has no topics yet; write them into lineage.yaml."


def lag(
    context: typer.Context,
    json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep looking, until ctrl-C; JSON lines with --json.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show every flow: how far it is, how far behind, and why. Writes nothing, starts no JVM."""
    with opened_to_look(context) as parts:
        insights = parts.insights()
        if watch:
            with suppress(KeyboardInterrupt):
                _watch(insights, every, json=json)
        elif json:
            print_json(insights.flows())
        else:
            print_table(_COLUMNS, map(_shown, insights.flows()), empty=_EMPTY)


def _watch(insights: Insights, every: float, *, json: bool) -> None:
    """Look again and again; the store may be written and tables may land meanwhile."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    if json or not console.is_terminal:
        while True:
            if json:
                print_json_lines([insights.flows()])
            else:
                print_table(_COLUMNS, map(_shown, insights.flows()), empty=_EMPTY)
            time.sleep(every)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table_of(_COLUMNS, map(_shown, insights.flows())), refresh=True)
            time.sleep(every)


def _shown(row: dict[str, Any]) -> tuple[object, ...]:
    failed = [f"{row[state]:,} {state}" for state in ("waiting", "dead") if row[state]]
    return (
        *(row[name] for name in ("topic", "processor", "state", "due", "complete_to")),
        _behind(row["lag_seconds"]),
        row["rows"],
        ", ".join(failed) or None,
        row["why"],
    )


_LINK = ("topic", "complete_to", "behind_seconds")
"""What scripts are told of each link of a chain."""


def why(context: typer.Context, topic: str, json: Json = False) -> None:
    """Say why a flow is not fresher, down to what is at fault."""
    with opened_to_look(context) as parts:
        found = parts.insights().why(topic)
    if json:
        chain = [{name: link[name] for name in _LINK} for link in found["chain"]]
        print_json({**found, "chain": chain})
        return
    for depth, link in enumerate(found["chain"]):
        branch = f"{'  ' * depth}{'└ ' if depth else ''}"
        print(f"{branch}{link['topic']}: {link['why']}{_how_far(link)}")


def _how_far(link: Mapping[str, Any]) -> str:
    """Say how far behind a place in a chain is, unless its reason says so already."""
    if link["behind_seconds"] is None:
        return ""
    behind = f"{_behind(link['behind_seconds'])} behind"
    return "" if behind in link["why"] else f" [{behind}]"


def _behind(seconds: float | None) -> str:
    from tidegate.model.duration import format_duration

    return "–" if seconds is None else format_duration(round(seconds * 1000))


def status(context: typer.Context, json: Json = False) -> None:
    """Say who leads, who works on what, and what waits for a person."""
    with opened_to_look(context) as parts:
        found = parts.insights().status()
    if json:
        print_json(found)
        return
    leader = found["leader"]
    if leader is None:
        print("No manager leads; `tidegate up` starts one.")
    else:
        print(f"{leader['holder']} leads since {leader['since']}, term {leader['term']}.")
    working = ", ".join(f"{count} {name}" for name, count in found["instances"].items() if count)
    print(f"Instances: {working or 'none'}.")
    for title, rows in (("running", found["running"]), ("stopped", found["stopped"])):
        if rows:
            print()
            print_table((title, "why" if title == "stopped" else "by"), rows.items(), empty="")
    if found["rejected_messages"]:
        skipped = counted(found["rejected_messages"], "message")
        print(f"\nSkipped, since they made no sense: {skipped}.")


@instances.command(name="list")
def list_instances(context: typer.Context, json: Json = False) -> None:
    """List instances: who they are, what they do, when they were last heard."""
    with opened_to_look(context) as parts:
        rows = parts.insights().instances()
    if json:
        print_json(rows)
        return
    columns = ("instance_id", "name", "host", "status", "state", "kinds", "tags", "reported_at")
    named = [{**row, **{name: ", ".join(row[name]) or None for name in _NAMES}} for row in rows]
    shown = [[row[name] for name in columns] for row in named]
    print_table(columns, shown, empty="No instance is known; `tidegate worker` starts some.")


_NAMES = ("kinds", "tags")


@instances.command()
def disable(context: typer.Context, which: Which) -> None:
    """Give an instance no more work; it lives on."""
    _change(context, which, "disable", "no more work from now on")


@instances.command()
def enable(context: typer.Context, which: Which) -> None:
    """Give a disabled instance work again."""
    _change(context, which, "enable", "work again from now on")


@instances.command()
def drain(context: typer.Context, which: Which) -> None:
    """Let a worker process finish what it runs, and end."""
    _change(context, which, "drain", "what runs is finished, then the process ends")


def _change(context: typer.Context, which: str, action: str, effect: str) -> None:
    from tidegate.model.instances import InstanceStatus

    with opened_to_look(context) as parts:
        chosen = _chosen(parts, which)
        ids = [one.id for one in chosen]
        if action == "drain":
            for process in sorted({one.process for one in chosen if one.ours}):
                parts.store.instances.set_status(process, InstanceStatus.CLOSING)
        else:
            parts.store.instances.disable(ids, action == "disable")
        _note(parts, INSTANCES, f"{action} {', '.join(ids)}")
        print(f"{counted(len(ids), 'instance')} of {which}: {effect}.")


def _chosen(parts: Parts, which: str) -> list[Instance]:
    from tidegate.errors import UnknownName

    fleet = parts.store.instances.all()
    chosen = [one for one in fleet if which in (one.id, one.name, one.process)]
    if not chosen:
        known = ", ".join(sorted({one.name or one.id for one in fleet})) or "none"
        raise UnknownName(f"there is no instance or worker {which!r}; there are: {known}")
    return chosen


def pause(
    context: typer.Context,
    select: Selectors,
    why: Annotated[str, typer.Option(help="For those who wonder later.")] = "",
) -> None:
    """Keep flows from running until they are resumed; what runs now ends."""
    with opened_to_look(context) as parts:
        asked = selected(parts, select)
        paused = _paused(parts)
        chosen = [flow for flow in asked.flows if flow in asked.named or flow not in paused]
        for flow in chosen:
            parts.store.controls.pause(flow, user(), why, parts.runtime.now())
            print(f"{flow} is paused; `tidegate resume {flow}` lets it go on.")
        if not chosen:
            print(f"All {len(asked.flows)} are paused already.")


def resume(context: typer.Context, select: Selectors) -> None:
    """Let paused or stopped flows go on, after what stopped them is mended."""
    from tidegate.errors import WrongUse
    from tidegate.model.position import OffsetState

    with opened_to_look(context) as parts:
        asked = selected(parts, select)
        offsets = parts.store.offsets.some(asked.flows)
        stopped = {flow for flow, one in offsets.items() if one.state is OffsetState.STOPPED}
        chosen = asked.fitting(stopped | _paused(parts))
        for flow in asked.flows:
            if flow in asked.named and flow not in chosen:
                raise WrongUse(f"{flow} is neither paused nor stopped: nothing to resume")
        for flow in chosen:
            now = parts.runtime.now()
            if flow in stopped:
                parts.store.offsets.resume(flow, now)
            parts.store.controls.unpause(flow, user(), now)
            print(f"{flow} goes on with the next run.")
        if not chosen:
            print(f"None of {len(asked.flows)} is paused or stopped.")


def _paused(parts: Parts) -> set[str]:
    controls = parts.store.controls.all()
    return {flow for flow, control in controls.items() if control.paused_at is not None}


def cancel(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="An execution's id.")],
) -> None:
    """End a running execution; its block stays as it is, and is tried again."""
    from tidegate.errors import UnknownName, WrongUse
    from tidegate.model.messages import Cancel

    with opened_to_look(context) as parts:
        found = parts.store.executions.get(id)
        if found is None:
            raise UnknownName(f"there is no execution {id}")
        if not parts.store.executions.ask_to_cancel(id, parts.runtime.now()):
            raise WrongUse(f"execution {id} has ended already: it is {found.state.value}")
        _note(parts, found.flow_id, f"cancel {id}")
        if found.etl_worker:
            with parts.bus() as bus:
                bus.publish([Cancel(found.etl_worker, id, parts.runtime.now())])
        print(f"{id}: its worker ends it; `tidegate pause` keeps a topic from trying again.")


def execute(
    context: typer.Context,
    config: Annotated[Path, typer.Option("--config", help="A JSON object for the worker.")],
    tags: Annotated[str, typer.Option(help="What the worker must carry, with commas.")] = "",
    json: Json = False,
) -> None:
    """Submit an execution of kind external, for a worker that is not ours."""
    from tidegate.model.execution import queued

    configuration = _configuration(config)
    with opened_to_look(context) as parts:
        id = parts.runtime.uuid()
        execution = queued(id, configuration, listed(tags), parts.runtime.now())
        parts.store.executions.assign(execution)
        _note(parts, execution.flow_id, f"execute {id}")
    if json:
        print_json({"id": id})
    else:
        print(f"{id} waits for an instance; `tidegate executions {id}` follows it.")


def _configuration(path: Path) -> dict[str, Any]:
    from tidegate.errors import WrongUse

    try:
        given = jsons.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    except ValueError as error:
        raise WrongUse(f"{path} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise WrongUse(f"{path} must hold a JSON object, such as {{}}")
    return given


def _note(parts: Parts, flow: str, what: str) -> None:
    parts.store.controls.note(flow, user(), what, parts.runtime.now())


_FOLLOW_SECONDS = 1.0
_PAGE = 1_000
Limit = Annotated[int | None, typer.Option(min=1, help="The newest so many.")]


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
    from tidegate.model.execution import ExecutionState

    with opened_to_look(context) as parts:
        insights = parts.insights()
        if id is not None:
            one = insights.execution(id)
            _print_one(one, json=json)
            return
        wanted = ExecutionState(state.value) if state else None
        found = insights.executions(flow=flow, state=wanted, limit=limit)
    if json:
        print_json(found)
        return
    names = ("id", "flow_id", "state", "attempt", "rows", "assigned_at", "comment")
    columns = ("id", "flow", "state", "attempt", "rows", "assigned at", "comment")
    rows = [[one[name] for name in names] for one in found]
    print_table(columns, rows, empty="Nothing has run yet.")


def _print_one(row: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(row)
        return
    streams = row.pop("phases")
    print_row(row)
    if streams:
        print()
        names = ("phase", "data_stream_name", "in", "out", "failed")
        totals = ("phase", "data_stream_name", *(f"total_{name}_messages" for name in names[2:]))
        print_table(names, [[stream[name] for name in totals] for stream in streams], empty="")


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
    with opened_to_look(context) as parts:
        datasets = parts.store.datasets
        # What was done to instances has a log before anything was done.
        if flow != INSTANCES and flow not in datasets.flows():
            known_topic(parts, flow)
        seen = -1
        for page in _pages(datasets, flow, latest=latest, limit=limit):
            show(page)
            seen = page[-1]["_location"]
        while follow:
            for page in _pages_from(datasets, flow, seen + 1):
                show(page)
                seen = page[-1]["_location"]
            time.sleep(_FOLLOW_SECONDS)


def _pages(
    datasets: Datasets, flow: str, *, latest: bool, limit: int | None
) -> Iterable[Sequence[Mapping[str, Any]]]:
    """Give the entities that are asked for, never more of them at once than one page or `limit`."""
    if latest or limit is not None:
        found = datasets.latest(flow, limit=limit) if latest else datasets.newest(flow, limit or 0)
        return [found] if found else []
    return _pages_from(datasets, flow, 0)


def _pages_from(datasets: Datasets, flow: str, since: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    while page := datasets.entities(flow, since=since, limit=_PAGE):
        yield page
        since = page[-1]["_location"] + 1


def _print_entities(entities: Iterable[Mapping[str, Any]]) -> None:
    for entity in entities:
        at = entity.get("end_time") or entity.get("event_time") or entity.get("start_time") or ""
        about = _about(entity)
        event = entity.get("event_type") or ""
        print(f"{entity['_location']:>6}  {at}  {event:<15} {about}".rstrip())


def _about(entity: Mapping[str, Any]) -> str:
    """Say in one line what an entity tells."""
    told = ""
    match entity.get("event_type"):
        case "operator-action":
            return f"{entity['user']}: {entity['action']}"
        case "task-completed":
            told = counted(entity["entities_succeeded"], "row")
            if entity["entities_failed"]:
                told += f", {entity['entities_failed']:,} failed"
        case "write-error":
            attempts = entity["retry_attempts"]
            tries = f" after {attempts} {'try' if attempts == 1 else 'tries'}" if attempts else ""
            told = f"{entity['entity']['_id']} {entity['state']}{tries}: {entity['exception']}"
        case "task-failed":
            told = str(entity["reason_why_stopped"]).partition("\n")[0]
    return f"{entity.get('task_instance', '')}  {told}"
