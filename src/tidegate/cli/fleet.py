"""`status`, `instances`, `pause`, `resume`, `cancel`, `execute`: who works, and orders to them."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.opening import known_topic, opened, user
from tidegate.cli.output import Json, print_json, print_table
from tidegate.cli.serving import listed

if TYPE_CHECKING:
    from tidegate.model.instance import Instance
    from tidegate.wiring import Parts

instances = typer.Typer(help="Who works: list them, give them work or none.", no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="An instance's id, or a worker's name: all its slots.")]
INSTANCES = "instances"
"""The flow whose log tells of what was done by hand to instances."""


def register(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(pause)
    app.command()(resume)
    app.command()(cancel)
    app.command()(execute)


def status(context: typer.Context, json: Json = False) -> None:
    """Say who leads, who works on what, and what waits for a person."""
    with opened(context) as parts:
        found = _status(parts)
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
        print(f"\n{found['rejected_messages']:,} messages were skipped, since they made no sense.")


def _status(parts: Parts) -> dict[str, Any]:
    from tidegate.model.execution import OffsetState
    from tidegate.model.position import rfc3339

    lease = parts.store.leadership.read()
    leads = lease.established(parts.pace.lease)
    fleet = parts.store.instances.all()
    paused = {
        flow: f"paused by {wish.paused_by}" + (f": {wish.paused_why}" if wish.paused_why else "")
        for flow, wish in parts.store.wishes.all().items()
        if wish.paused_at is not None
    }
    stopped = {
        topic: offset.reason
        for topic, offset in parts.store.offsets.all().items()
        if offset.state is OffsetState.STOPPED
    }
    return {
        "leader": {
            "holder": lease.holder,
            "term": lease.term,
            "since": rfc3339(lease.elected_at),
            "expires_at": rfc3339(lease.expires_at),
        }
        if leads
        else None,
        "instances": {
            "idle": sum(one.works and one.state == "idle" for one in fleet),
            "busy": sum(one.works and one.state == "busy" for one in fleet),
            "disabled": sum(one.disabled and one.status == "alive" for one in fleet),
            "closing": sum(one.status == "closing" for one in fleet),
            "dead": sum(one.status == "dead" for one in fleet),
        },
        "running": {
            one.topic or one.id: one.etl_worker or "waits for an instance"
            for one in parts.store.executions.open()
        },
        "stopped": {**stopped, **paused},
        "rejected_messages": sum(parts.store.rejected.totals().values()),
    }


@instances.command(name="list")
def list_instances(context: typer.Context, json: Json = False) -> None:
    """List instances: who they are, what they do, when they were last heard."""
    with opened(context) as parts:
        rows = [_row(one) for one in parts.store.instances.all()]
    if json:
        print_json(rows)
        return
    columns = ("instance_id", "name", "host", "status", "state", "kinds", "tags", "reported_at")
    shown = [[row[name] for name in columns] for row in rows]
    print_table(columns, shown, empty="No instance is known; `tidegate worker` starts some.")


@instances.command()
def disable(context: typer.Context, which: Which) -> None:
    """Give an instance no more work; it lives on."""
    _change(context, which, "disable", "get no more work")


@instances.command()
def enable(context: typer.Context, which: Which) -> None:
    """Give a disabled instance work again."""
    _change(context, which, "enable", "get work again")


@instances.command()
def drain(context: typer.Context, which: Which) -> None:
    """Let a worker process finish what it runs, and end."""
    _change(context, which, "drain", "finish what they run, and end")


def _change(context: typer.Context, which: str, action: str, effect: str) -> None:
    from tidegate.model.instance import InstanceStatus

    with opened(context) as parts:
        chosen = _chosen(parts, which)
        ids = [one.id for one in chosen]
        if action == "drain":
            for process in sorted({one.process for one in chosen if one.ours}):
                parts.store.instances.set_status(process, InstanceStatus.CLOSING)
        else:
            parts.store.instances.disable(ids, action == "disable")
        _note(parts, INSTANCES, f"{action} {', '.join(ids)}")
        print(f"{len(ids)} instance{'s' if len(ids) > 1 else ''} of {which}: they {effect}.")


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
    topic: str,
    why: Annotated[str, typer.Option(help="For those who wonder later.")] = "",
) -> None:
    """Keep a topic from running until it is resumed; what runs now ends."""
    with opened(context) as parts:
        parts.store.wishes.pause(known_topic(parts, topic), user(), why, parts.runtime.now())
        print(f"{topic} is paused; `tidegate resume {topic}` lets it go on.")


def resume(context: typer.Context, topic: str) -> None:
    """Let a paused or stopped topic go on, after what stopped it is mended."""
    from tidegate.errors import WrongUse
    from tidegate.model.execution import OffsetState

    with opened(context) as parts:
        known_topic(parts, topic)
        now = parts.runtime.now()
        wish = parts.store.wishes.all().get(topic)
        offset = parts.store.offsets.get(topic)
        paused = wish is not None and wish.paused_at is not None
        stopped = offset is not None and offset.state is OffsetState.STOPPED
        if not paused and not stopped:
            raise WrongUse(f"{topic} is neither paused nor stopped: nothing to resume")
        if stopped:
            parts.store.offsets.resume(topic, now)
        parts.store.wishes.unpause(topic, user(), now)
        print(f"{topic} goes on with the next run.")


def cancel(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="An execution's id.")],
) -> None:
    """End a running execution; its block stays as it is, and is tried again."""
    from tidegate.errors import UnknownName, WrongUse
    from tidegate.model.messages import Cancel

    with opened(context) as parts:
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
    from tidegate.model.assignment import queued

    configuration = _configuration(config)
    with opened(context) as parts:
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
    parts.store.wishes.note(flow, user(), what, parts.runtime.now())


def _row(instance: Instance) -> dict[str, Any]:
    from tidegate.model.position import rfc3339

    row = asdict(instance)
    row["instance_id"] = row.pop("id")
    row["kinds"], row["tags"] = list(instance.kinds), list(instance.tags)
    row["status"], row["state"] = instance.status.value, instance.state.value
    for name in (name for name in row if name.endswith("_at")):
        row[name] = None if row[name] is None else rfc3339(row[name])
    return row
