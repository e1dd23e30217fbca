"""`offsets show|set|unlock`: positions and mutexes, seen and moved by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.opening import known_topic, opened
from tidegate.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from tidegate.model.execution import Offset
    from tidegate.wiring import Parts

app = typer.Typer(help="Positions and mutexes, seen and moved by hand.", no_args_is_help=True)


@app.command()
def show(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    json: Json = False,
) -> None:
    """Show the rows of `offsets`: those of topics, and of the tables they were seen to read."""
    with opened(context) as parts:
        rows = [_row(offset) for _, offset in sorted(parts.store.offsets.all().items())]
        if topic is not None:
            known_topic(parts, topic)
            rows = [row for row in rows if row["topic"] == topic]
    _print(rows, json)


@app.command(name="set")
def set_(
    context: typer.Context,
    topic: str,
    last: Annotated[
        str, typer.Option(metavar="POS,ID", help="The position that counts as processed.")
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also back, or over a block that is not finished."),
    ] = False,
    json: Json = False,
) -> None:
    """Put a topic to a position; never back, for its table would be doubled, unless forced."""
    from tidegate.errors import WrongUse
    from tidegate.model.position import Position

    with opened(context) as parts:
        try:
            position = Position.parse(last)
        except ValueError as error:
            raise WrongUse(f"--last: {error}") from None
        offset = _moved(parts, topic, position, force)
        parts.store.offsets.put(offset, parts.runtime.now())
        rows = [_row(offset)]
    _print(rows, json)


def _moved(parts: Parts, topic: str, position: Any, force: bool) -> Offset:
    from dataclasses import replace

    from tidegate.errors import UnknownName, WrongUse
    from tidegate.model.execution import Offset, OffsetState
    from tidegate.model.lineage import Processor
    from tidegate.model.position import START

    definition = parts.project.definitions.get(topic)
    if definition is None or definition.processor is Processor.SOURCE:
        raise UnknownName(f"there is no topic {topic!r} to build in this project")
    offset = parts.store.offsets.get(topic) or Offset(topic, START)
    if position < offset.last and not force:
        raise WrongUse(
            f"{topic} is at {offset.last}: going back to {position} would load rows again;"
            " empty the table first, then use --force"
        )
    if offset.block is not None and not force:
        raise WrongUse(
            f"{topic} has a block up to {offset.block.next} that is not finished; run it first,"
            " or use --force to forget it"
        )
    # Whatever the table records is behind us from here on: the next block gets a number above it.
    recorded = parts.tables.recorded(definition).seq
    seq = recorded if force else max(offset.seq, recorded)
    return replace(
        offset,
        last=position,
        seq=seq,
        run=parts.runtime.now(),
        state=OffsetState.DONE if seq else OffsetState.NEW,
        complete_to=position.pos if position < offset.last else offset.complete_to,
        failures=0,
        reason="",
        full=False,
        block=None,
    )


@app.command()
def unlock(context: typer.Context, topic: str, json: Json = False) -> None:
    """Free a topic's mutex by hand; only when its holder is certainly gone."""
    with opened(context) as parts:
        held = parts.store.offsets.unlock(known_topic(parts, topic), parts.runtime.now())
        offset = parts.store.offsets.get(topic)
    if not json:
        print(f"{topic} was held by {held}; it is free now." if held else f"{topic} was free.")
    else:
        _print([_row(offset)] if offset else [], json)


def _print(rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(rows)
        return
    positions = ("last_pos", "last_id", "next_pos", "next_id")
    columns = ("topic", *positions, "rows", "seq", "state", "complete_to", "run", "hostid")
    shown = [[row[name] for name in columns] for row in rows]
    for row in shown:
        # Positions are copied into commands: no thousands separators in them.
        row[1:5] = ["–" if value is None else str(value) for value in row[1:5]]
    print_table(columns, shown, empty="No topic has a position yet.")


def _row(offset: Offset) -> dict[str, Any]:
    from tidegate.model.position import rfc3339

    def time(value: int | None) -> str | None:
        return rfc3339(value) if value else None

    return {
        "topic": offset.topic,
        "last_pos": offset.last.pos,
        "last_id": offset.last.id,
        "rows": offset.rows,
        "next_pos": offset.next.pos if offset.next else None,
        "next_id": offset.next.id if offset.next else None,
        "run": time(offset.run),
        "processor": offset.processor,
        "state": offset.state.value,
        "hostid": offset.hostid,
        "execution_id": offset.execution_id,
        "claimed_at": time(offset.claimed_at),
        "seq": offset.seq,
        "complete_to": time(offset.complete_to),
        "failures": offset.failures,
        "reason": offset.reason,
        "stale": offset.stale,
        "versions": dict(offset.versions),
    }
