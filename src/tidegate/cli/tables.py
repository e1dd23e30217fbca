"""The commands of tables alone: `offsets`, `rebuild`, `etl-log`, `retry`, and what a view gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.output import (
    Json,
    counted,
    known_topic,
    opened,
    opened_to_look,
    print_json,
    print_table,
)
from tidegate.cli.running import apply_first, print_report
from tidegate.cli.selecting import Selectors, selected
from tidegate.errors import FlowFailed, TidegateError, UnknownName, WrongUse
from tidegate.model.position import GREATEST, START, Block, Offset, OffsetState, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.session import SparkHost
    from tidegate.tables.definition import TableDefinition
    from tidegate.wiring import Parts


Limit = Annotated[int | None, typer.Option(min=1, help="The newest so many.")]
offsets = typer.Typer(help="Positions and mutexes, seen and moved by hand.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for command in (rebuild, view, explain, retry):
        app.command()(command)
    app.command(name="etl-log")(etl_log)
    app.add_typer(offsets, name="offsets")


@offsets.command()
def show(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    json: Json = False,
) -> None:
    """Show the rows of `offsets`: those of topics, and of the tables they were seen to read."""
    with opened_to_look(context) as parts:
        if topic is not None:
            known_topic(parts, topic)
        rows = parts.insights().offsets(topic)
    _print(rows, json)


@offsets.command(name="set")
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

    with opened(context) as parts:
        try:
            position = Position.parse(last)
        except ValueError as error:
            raise WrongUse(f"--last: {error}") from None
        offset = _moved(parts, topic, position, force)
        parts.store.offsets.put(offset, parts.runtime.now())
        rows = parts.insights().offsets(topic)
    _print(rows, json)


def _moved(parts: Parts, topic: str, position: Any, force: bool) -> Offset:
    from tidegate.tables.definition import Processor

    definition = parts.topics.get(topic)
    if definition is None or definition.processor is Processor.SOURCE:
        raise UnknownName(f"there is no topic {topic!r} to build in this project")
    offset = parts.store.offsets.get(topic) or Offset(topic, START, definition.table)
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
    recorded = parts.tables.recorded(definition.table, topic).seq
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


@offsets.command()
def unlock(context: typer.Context, topic: str, json: Json = False) -> None:
    """Free a topic's mutex by hand; only when its holder is certainly gone."""
    with opened_to_look(context) as parts:
        held = parts.store.blocks.unlock(known_topic(parts, topic), parts.runtime.now())
        rows = parts.insights().offsets(topic)
    if json:
        print_json(rows)
    else:
        print(f"{topic} was held by {held}; it is free now." if held else f"{topic} was free.")


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


def etl_log(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="Only those of this topic.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """Show what each load measured of its own rows, the newest first."""
    with opened_to_look(context) as parts:
        if topic is not None:
            known_topic(parts, topic)
        found = parts.insights().etl_log(topic, limit=limit)
    if json:
        print_json(found)
        return
    columns = ("topic", "ts", "rows", "max_id", "min_ts", "max_ts", "max_lag", "figures", "nulls")
    rows = [[*(row[name] for name in columns[:-1]), _some(row["nulls"])] for row in found]
    print_table(columns, rows, empty="Nothing was loaded yet.")


def _some(nulls: dict[str, int] | None) -> dict[str, int] | None:
    """Leave out the columns without a null: people look for the others."""
    return {name: count for name, count in (nulls or {}).items() if count} or None


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
    with opened(context) as parts, parts.spark(quick=True) as spark:
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
    with opened(context) as parts, parts.spark(quick=True) as spark:
        plan = plan_of(parts, spark, Asked(name, topic, last, next))
    if json:
        print_json({"view": name, "plan": plan})
    else:
        print(plan)


def retry(context: typer.Context, select: Selectors) -> None:
    """Try the rows that failed once more with the next run, the dead ones too."""
    with opened_to_look(context) as parts:
        asked = selected(parts, select)
        failures = parts.store.failures
        counts = failures.counts()
        # One that was named alone and has none is refused by the store, before the others are.
        none = [flow for flow in asked.flows if flow in asked.named and not counts.get(flow)]
        chosen = [*none, *asked.fitting(flow for flow, states in counts.items() if states)]
        for flow in chosen:
            waiting = failures.retry(flow, parts.runtime.now())
            print(f"{flow}: the next run tries {counted(waiting, 'row')} again.")
        if not chosen:
            print(f"None of {len(asked.flows)} has rows that failed.")


_TEMPORARY = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?TEMP(?:ORARY)?\s", re.IGNORECASE)


@dataclass(frozen=True)
class Asked:
    """Which view, for whom, and over which block."""

    name: str
    topic: str | None
    last: str | None
    next: str | None


def preview(
    parts: Parts, spark: SparkHost, asked: Asked, limit: int
) -> tuple[list[str], list[list[Any]]]:
    """Give the columns and the first rows of a view, for the block from `last` to `next`."""
    with _rows(parts, spark, asked) as rows:
        first = rows.limit(limit)
        return first.columns, [[_shown(value) for value in row] for row in first.collect()]


def plan_of(parts: Parts, spark: SparkHost, asked: Asked) -> str:
    """Give the plan by which Spark would read a view for that block."""
    told = StringIO()
    with _rows(parts, spark, asked) as rows, redirect_stdout(told):
        rows.explain(mode="formatted")
    return told.getvalue().strip()


@contextmanager
def _rows(parts: Parts, spark: SparkHost, asked: Asked) -> Iterator[DataFrame]:
    from tidegate.spark.session import sentence
    from tidegate.tables.views import BlockViews

    name = asked.name.lower()
    definition = _user_of(parts, name, asked.topic)
    offset = parts.store.offsets.get(definition.topic) or Offset(definition.topic, START)
    after = _position("--last", asked.last) or offset.last
    upto = _position("--next", asked.next) or offset.next or Position(GREATEST // 1000, GREATEST)
    if asked.topic != definition.topic:
        definition = definition.whole()
    views = BlockViews(parts.tables, spark.catalogued)
    block = Block(after, upto, 0, offset.seq + 1, False, 0, 0)
    session = spark.fresh()
    try:
        views.define(session, definition, block)
        views.run_statements(session, definition, "before", _temporary(definition.before))
        yield views.rows(session, replace(definition, transforms=(name,)), {})
    except TidegateError:
        raise
    except Exception as error:
        raise FlowFailed(f"view {asked.name}: {sentence(error)}") from error


def _temporary(before: str) -> str:
    """Keep of `before` what the session alone sees: a preview writes nothing."""
    from tidegate.sql.reading import statements

    return ";\n".join(text for text in statements(before) if _TEMPORARY.match(text))


def _user_of(parts: Parts, name: str, topic: str | None) -> TableDefinition:
    from tidegate.tables.definition import Processor

    if name not in parts.project.views:
        names = ", ".join(sorted(parts.project.views)) or "none"
        raise UnknownName(f"there is no view {name!r}; there are: {names}")
    users = [
        definition
        for definition in parts.topics.values()
        if name in definition.views and definition.processor is not Processor.SOURCE
    ]
    if topic is not None:
        users = [
            definition for definition in users if topic in (definition.topic, definition.entry)
        ]
    if not users:
        raise WrongUse(f"no topic{f' {topic}' if topic else ''} uses the view {name}")
    return users[0]


def _position(option: str, text: str | None) -> Position | None:
    if text is None:
        return None
    try:
        return Position.parse(text)
    except ValueError as error:
        raise WrongUse(f"{option}: {error}") from None


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def rebuild(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[+]", help="With + all that is built from it, too.")
    ],
    json: Json = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where the base has lost rows of the table.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="On a shared store: apply changed definitions first.")
    ] = False,
) -> None:
    """Build a table anew beside the old one, and put it in its place in one commit."""
    from tidegate.cli.running import watcher

    with opened(context) as parts:
        topics = chosen(parts.topics, topic)
        apply_first(parts, apply)
        with parts.spark() as spark, watcher(quiet=json) as watching:
            report = parts.rebuilder(spark, watching).run(topics, force=force)
        print_report(report, json=json)
    if report.failed:
        raise typer.Exit(1)


def chosen(definitions: Mapping[str, TableDefinition], asked: str) -> set[str]:
    """Resolve TOPIC or TABLE, with what is built from it when a + follows."""
    from tidegate.tables.definition import Processor
    from tidegate.tables.graph import downstream

    name = asked.removesuffix("+")
    found = {topic for topic, one in definitions.items() if name in (topic, one.table)}
    buildable = {t: d for t, d in definitions.items() if d.processor is not Processor.SOURCE}
    if not found:
        names = ", ".join(buildable) or "none"
        raise UnknownName(f"there is no topic {name!r} to rebuild; there are: {names}")
    if not found <= buildable.keys():
        raise WrongUse(
            f"{name} is a source: others write it, so there is nothing to rebuild it from; what is"
            " built from it is rebuilt by its own name"
        )
    return downstream(buildable, found) if asked != name else found
