"""How the commands find their project and print: JSON documents, tables, sentences."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.errors import Problem
    from tidegate.project.folder import Project
    from tidegate.wiring import Parts


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for scripts.")]


def complain(sentence: str) -> None:
    """Say what went wrong, on stderr."""
    print(f"tidegate: {sentence}", file=sys.stderr)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_lines(documents: Iterable[Any]) -> None:
    for document in documents:
        print(json.dumps(document, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows below their headings; numbers stand to the right."""
    from rich.console import Console

    found = [[_shown(value) for value in row] for row in rows]
    if not found:
        print(empty)
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # A pipe has no width: a line stays a line.
        console.width = 1 + sum(
            2 + max(len(name), *(len(row[number]) for row in found))
            for number, name in enumerate(columns)
        )
    console.print(table_of(columns, found))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Lay rows out below their headings."""
    from rich.table import Table

    found = [[_shown(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        right = all(_is_number(row[number]) for row in found)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in found:
        table.add_row(*row)
    return table


def print_row(row: Mapping[str, Any]) -> None:
    """Print one row as name and value, a line each."""
    width = max(map(len, row), default=0)
    for name, value in row.items():
        print(f"{name:<{width}}  {_shown(value)}")


def _shown(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def _is_number(text: str) -> bool:
    return text == "–" or text.replace(",", "").replace(".", "").replace("-", "").isdigit()


def read_project(context: typer.Context) -> Project:
    """Read the project, with its problems."""
    from tidegate import wiring
    from tidegate.project.folder import find_project

    given = context.find_root().obj
    return wiring.read_project(find_project(given if isinstance(given, Path) else None))


@contextmanager
def opened(context: typer.Context) -> Iterator[Parts]:
    """Read the project, require that it is sound, and open its parts."""
    from tidegate.wiring import open_parts

    project = read_project(context)
    project.require_sound()
    with open_parts(project) as parts:
        yield parts


@contextmanager
def opened_to_look(context: typer.Context) -> Iterator[Parts]:
    """Open the parts of a project that may be in the middle of a change.

    Where it has problems, what is applied takes its place: that is what runs meanwhile.
    """
    from tidegate.wiring import has_store, open_parts

    project = read_project(context)
    # Settings that do not read say not even which store it is.
    if not (project.configured and has_store(project.settings)):
        project.require_sound()
    with open_parts(project) as parts:
        wrong = [problem for problem in project.problems if not problem.warning]
        if wrong:
            parts = _as_applied(parts, wrong)
        yield parts


def _as_applied(parts: Parts, wrong: Sequence[Problem]) -> Parts:
    """Put what is applied in the place of a project with problems, and say so on one line."""
    applied = parts.store.definitions.current()
    if not applied:
        parts.project.require_sound()
    more = f" (and {counted(len(wrong) - 1, 'more problem')})" if len(wrong) > 1 else ""
    # On one line, whatever is wrong: a script's output goes on behind it.
    first = " ".join(str(wrong[0]).split())
    complain(f"{first}{more}; what follows is of the definitions that are applied")
    definitions = {flow: one.definition for flow, one in applied.items()}
    project = replace(parts.project, definitions=definitions, entries={}, problems=())
    return replace(parts, project=project)


def counted(count: int, noun: str) -> str:
    """Count things in words: `no topics`, `1 topology`, `2 topologies`."""
    return f"{f'{count:,}' if count else 'no'} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Give the plural of a word as people know it."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def user() -> str:
    """Name who gives the command, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        return str(os.getuid())


def known_topic(parts: Parts, topic: str) -> str:
    """Require that the project or the store knows the topic."""
    from tidegate.errors import UnknownName

    known = {*parts.project.definitions, *parts.store.offsets.all()}
    if topic not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnknownName(f"there is no topic {topic!r}; there are: {names}")
    return topic
