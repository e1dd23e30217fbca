"""What must hold for a lineage as a whole: names, circles, bases, views. Read without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlglot import parse_one
from sqlglot.errors import SqlglotError

from tidegate.errors import Problem
from tidegate.model.lineage import Definition, LineageCycle, Processor, order
from tidegate.model.plan import Look
from tidegate.model.statements import statements
from tidegate.model.viewrules import step_findings
from tidegate.model.viewtext import (
    ViewCycleError,
    ViewSyntaxError,
    ViewText,
    reachable,
    read_view,
    tables_read,
)
from tidegate.project.entries import Entry


def read_views(folder: Path) -> tuple[dict[str, ViewText], set[str], list[Problem]]:
    """Read every file of `views/`: the views, the names of those that do not read, and why.

    Names are taken without regard to case, as Spark does.
    """
    views: dict[str, ViewText] = {}
    unread: set[str] = set()
    problems: list[Problem] = []
    for path in sorted((folder / "views").glob("*.sql")):
        shown, name = f"views/{path.name}", path.stem.lower()
        unread.add(name)
        try:
            if not name.isidentifier():
                raise ViewSyntaxError(0, "its name must be letters, digits and _ only")
            if name in views:
                raise ViewSyntaxError(0, f"another file is called {name}.sql but for its case")
            views[name] = read_view(name, path.read_text(encoding="utf-8"))
        except ViewSyntaxError as error:
            problems.append(Problem(shown, error.line, "", error.message))
        except UnicodeDecodeError:
            problems.append(Problem(shown, 0, "", "is not UTF-8 text"))
        except OSError as error:
            problems.append(Problem(shown, 0, "", f"cannot be read: {error.strerror}"))
    return views, unread - views.keys(), problems


def entry_problems(
    entry: Entry,
    definition: Definition,
    views: Mapping[str, ViewText],
    unread: set[str],
    variables: Mapping[str, Any],
) -> list[Problem]:
    """Judge one entry on its own."""
    problems = [entry.problem(field, message) for field, message in _fields(entry, definition)]
    known = [name for name in definition.transforms if name in views]
    for name in definition.transforms:
        if name not in views and name not in unread:
            message = f"there is no view {name}; write it as views/{name}.sql"
            problems.append(entry.problem("transforms", message))
    try:
        names = reachable(known, views)
    except ViewCycleError as error:
        return [*problems, entry.problem("transforms", str(error))]
    for name in names:
        problems += _view_problems(views[name], views, variables)
    if definition.processor is Processor.STEP and definition.depends_on:
        problems += _step_problems(definition, known, views)
    if definition.processor is Processor.RELOAD:
        problems += _reload_problems(names, views)
    if definition.checks:
        problems += _unsteady(entry, names, views)
    problems += _unlisted(definition, known, views)
    return problems


def _fields(entry: Entry, definition: Definition) -> Iterator[tuple[str, str]]:
    """Judge which fields go together."""
    if definition.processor is Processor.SOURCE:
        for name in ("depends_on", "transforms", "keys", "checks", "before", "after"):
            if entry.get(name):
                yield name, "does not go with processor: source, which nothing here builds"
        return
    if not definition.depends_on:
        yield "depends_on", "is missing; name the base table, and the others to wait for"
    if not definition.transforms:
        yield "transforms", "is missing; name the views that give the rows"
    for name in sorted(set(definition.depends_on) & set(definition.unwaited)):
        yield "unwaited", f"{name} is in depends_on too; it is either waited for or not"
    if definition.deleted and not definition.keys:
        yield "deleted", "needs keys: it says which rows remove their key"
    if definition.partition_by and definition.cluster_by:
        yield "cluster_by", "does not go with partition_by; use one of them"
    if definition.processor is Processor.RELOAD and definition.keys:
        yield "keys", "does not go with processor: reload, which writes the whole table anew"
    for name in ("before", "after"):
        try:
            statements(entry.get(name))
        except ValueError as error:
            yield name, str(error)
    conditions = {"deleted": definition.deleted} if definition.deleted else {}
    for name, condition in {**definition.checks, **conditions}.items():
        try:
            parse_one(condition, dialect="spark")
        except SqlglotError:
            field = "deleted" if name == "deleted" else "checks"
            yield field, f"{name}: {condition!r} does not read as a condition in SQL"


def _view_problems(
    view: ViewText, views: Mapping[str, ViewText], variables: Mapping[str, Any]
) -> Iterator[Problem]:
    shown = f"views/{view.name}.sql"
    for name in sorted(view.parameters - set(variables)):
        message = f":{name} is not in [vars] of tidegate.toml"
        yield Problem(shown, 1, f":{name}", message)
    for name, line in view.views.items():
        if name not in views:
            message = f"reads {name}, and there is no views/{name}.sql; tables are named db.table"
            yield Problem(shown, line, name, message)


def _step_problems(
    definition: Definition, transforms: list[str], views: Mapping[str, ViewText]
) -> Iterator[Problem]:
    for transform in transforms:
        findings = step_findings(
            transform,
            views,
            base=definition.base,
            pos=definition.pos,
            id=definition.id,
            keyed=bool(definition.keys),
        )
        for finding in findings:
            yield Problem(f"views/{finding.view}.sql", finding.line, "", finding.message)


def _reload_problems(names: Iterable[str], views: Mapping[str, ViewText]) -> Iterator[Problem]:
    for name in names:
        for call in sorted(views[name].calls):
            message = f"{call}() is for a Step; a Reload reads its tables whole"
            yield Problem(f"views/{name}.sql", 1, "", message)


def _unsteady(
    entry: Entry, names: Iterable[str], views: Mapping[str, ViewText]
) -> Iterator[Problem]:
    for name in names:
        for function in sorted(views[name].nondeterministic):
            message = (
                f"does not go with {function}() in views/{name}.sql:"
                " a row must give the same answer each time it is checked"
            )
            yield entry.problem("checks", message)


def _unlisted(
    definition: Definition, transforms: list[str], views: Mapping[str, ViewText]
) -> Iterator[Problem]:
    listed = {name.lower() for name in (*definition.listed, definition.table)}
    for table, (view, line) in tables_read(transforms, views).items():
        if table.lower() not in listed:
            message = (
                f"{definition.topic} reads {table}, which is neither in its depends_on nor in its"
                " unwaited; add it to one of them"
            )
            yield Problem(f"views/{view}.sql", line, table, message, warning=True)


def lineage_problems(
    entries: Mapping[str, Entry], definitions: Mapping[str, Definition]
) -> list[Problem]:
    """Judge how the entries fit together."""
    problems = [*_siblings(entries, definitions), *_bases(entries, definitions)]
    try:
        order(definitions.values())
    except LineageCycle as error:
        first = next(d.topic for d in definitions.values() if d.table == error.tables[0])
        problems.append(entries[first].problem("depends_on", str(error)))
    return problems


def _siblings(
    entries: Mapping[str, Entry], definitions: Mapping[str, Definition]
) -> Iterator[Problem]:
    """Judge the topics that feed one table: they must agree on its shape."""
    first: dict[str, Definition] = {}
    for topic, definition in definitions.items():
        other = first.setdefault(definition.table, definition)
        if other is definition:
            continue
        entry = entries[topic]
        if definition.processor is not Processor.STEP or other.processor is not Processor.STEP:
            message = (
                f"{definition.table} is written by {other.topic} too; only Steps may share one"
            )
            yield entry.problem("processor", message)
        for name in ("keys", "pos", "id", "partition_by", "cluster_by"):
            if getattr(definition, name) != getattr(other, name):
                yield entry.problem(name, f"must be the same as that of {other.topic}")
        if definition.deleted or other.deleted:
            message = (
                f"does not go with several topics of {definition.table}: a key that one removes"
                " could come back by an older row of another"
            )
            yield entry.problem("deleted", message)


def _bases(
    entries: Mapping[str, Entry], definitions: Mapping[str, Definition]
) -> Iterator[Problem]:
    """Judge what may be a base: landed tables, appended ones, keyed ones for a keyed Step only."""
    by_table = {definition.table: definition for definition in definitions.values()}
    for topic, definition in definitions.items():
        if definition.processor is not Processor.STEP or not definition.depends_on:
            continue
        base = by_table.get(definition.base)
        if base is None:
            continue
        entry = entries[topic]
        if base.processor is Processor.RELOAD:
            message = (
                f"{base.table} is built by Reload and has no position to read it by; put another"
                " table first, or build this one by Reload"
            )
            yield entry.problem("depends_on", message)
        if base.keys and not definition.keys:
            message = (
                f"{base.table} has keys, so its rows change after they were read; as a base it is"
                " for a Step with keys only"
            )
            yield entry.problem("depends_on", message)


def lake_problems(
    entries: Mapping[str, Entry],
    definitions: Mapping[str, Definition],
    looks: Mapping[str, Look],
    seen: Iterable[str],
) -> list[Problem]:
    """Judge the dependencies that nobody here builds by what is in the lake."""
    declared = {d.table for d in definitions.values()}
    known = declared | set(seen)
    problems: list[Problem] = []
    for topic, definition in definitions.items():
        for number, table in enumerate(definition.depends_on):
            look = looks.get(table)
            if look is None:
                continue
            message = ""
            if not look.exists and table not in known:
                message = (
                    f"{table} is neither built here, nor declared with processor: source, nor in"
                    " the lake"
                )
            elif look.exists and not look.positioned and _is_base(definition, number):
                columns = f"{definition.base_pos} (bigint or timestamp) and {definition.base_id}"
                message = f"{table} has no columns {columns} to be read by position"
            if message:
                entry = entries[topic]
                line = entry.lines.get("depends_on", entry.line)
                problems.append(Problem(entry.file, line, "depends_on", message, in_lake=True))
    return problems


def _is_base(definition: Definition, number: int) -> bool:
    return number == 0 and definition.processor is Processor.STEP
