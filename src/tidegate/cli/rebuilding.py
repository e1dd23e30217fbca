"""`rebuild`: tables built anew after their views were mended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.opening import opened
from tidegate.cli.output import Json
from tidegate.cli.running import apply_first, print_report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.model.lineage import Definition


def register(app: typer.Typer) -> None:
    app.command()(rebuild)


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
    from tidegate.cli.progress import watcher

    with opened(context) as parts:
        topics = chosen(parts.project.definitions, topic)
        apply_first(parts, apply)
        with parts.spark() as spark, watcher(quiet=json) as watching:
            report = parts.rebuilder(spark, watching).run(topics, force=force)
        print_report(report, json=json)
    if report.failed:
        raise typer.Exit(1)


def chosen(definitions: Mapping[str, Definition], asked: str) -> set[str]:
    """Resolve TOPIC or TABLE, with what is built from it when a + follows."""
    from tidegate.errors import UnknownName, WrongUse
    from tidegate.model.lineage import Processor, downstream

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
