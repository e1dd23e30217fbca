"""`init`, `check` and `apply`: a project made, judged, and brought into the store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.opening import opened, read_project, user
from tidegate.cli.output import Json, print_json

if TYPE_CHECKING:
    from tidegate.engine.looks import Tables
    from tidegate.errors import Problem
    from tidegate.model.facts import Look
    from tidegate.model.lineage import Changes, Definition
    from tidegate.ports import Store
    from tidegate.project import Project
    from tidegate.wiring import Parts


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(check)
    app.command()(apply)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Make a project that runs, to read and to change."""
    from tidegate.project.template import make_project

    made = make_project(folder)
    print(f"Made a project in {folder}:")
    for path in made:
        print(f"  {path}")
    place = shlex.quote(str(folder))
    print(f"Next: cd {place}, then: tidegate run, tidegate lag, tidegate why fact.orders")


def check(
    context: typer.Context,
    json: Json = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark analyse the views fully; starts a JVM.")
    ] = False,
) -> None:
    """Say everything that is wrong with the project, with file and line."""
    project = read_project(context)
    found = [*project.problems, *(_in_lake(project) if project.configured else ())]
    if spark and not any(not problem.warning for problem in found):
        from tidegate.wiring import open_parts

        with open_parts(project) as parts:
            found += _analysed(parts)
    problems = sorted({problem for problem in found if not problem.warning})
    warnings = sorted({problem for problem in found if problem.warning})
    if json:
        print_json(
            {
                "ok": not problems,
                "problems": [_row(problem) for problem in problems],
                "warnings": [_row(problem) for problem in warnings],
            }
        )
    else:
        for problem in (*problems, *warnings):
            print(f"{'warning: ' if problem.warning else ''}{problem}")
        topics = sum(1 for d in project.definitions.values() if d.processor != "source")
        counts = ((topics, "topic"), (len(project.views), "view"))
        verdict = ((len(problems), "problem"), (len(warnings), "warning"))
        print(f"{_counted(counts)}: {_counted(verdict)}")
    if problems:
        raise typer.Exit(2)


def _counted(counts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{count or 'no'} {name}{'' if count == 1 else 's'}" for count, name in counts)


def _row(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.file,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
    }


def _in_lake(project: Project) -> list[Problem]:
    """Hold the tables that nobody here builds against the lake and the store's memory."""
    from tidegate.errors import LakeError, Problem, StoreError
    from tidegate.model.lineage import Processor
    from tidegate.project.rules import lake_problems, shard_problems
    from tidegate.runtime import RealRuntime
    from tidegate.settings import FILE
    from tidegate.wiring import open_lake

    entries, definitions = project.entries, project.definitions
    built = {d.table for d in definitions.values() if d.processor is not Processor.SOURCE}
    tables = open_lake(project.settings, RealRuntime())
    looks: dict[str, Look | LakeError] = {}
    for table in {table for d in definitions.values() for table in d.listed} - built:
        source = definitions.get(table)
        try:
            looks[table] = _glance(tables, table, *((source.pos, source.id) if source else ()))
        except LakeError as error:
            looks[table] = error
    dealt = {d.base for d in definitions.values() if d.shard and d.depends_on}
    columns = {table: _columns(tables, table) for table in dealt}
    undealt = shard_problems(entries, definitions, columns)
    problems = lake_problems(entries, definitions, looks, seen=())
    if not problems:
        return undealt
    try:
        return [*undealt, *lake_problems(entries, definitions, looks, _seen(project))]
    except StoreError as error:
        return [*undealt, *problems, Problem(FILE, 0, "store.url", str(error))]


def _glance(tables: Tables, table: str, pos: str = "pos", id: str = "id") -> Look:
    """See whether a table is there and can be read by position, without its statistics."""
    from tidegate.engine.positions import position_columns
    from tidegate.model.facts import Look

    found = tables.open(table)
    if found is None:
        return Look(table, 0, exists=False)
    return Look(table, 0, positioned=position_columns(found, pos, id) is not None)


def _columns(tables: Tables, table: str) -> list[str]:
    """Name the columns of a table; of one that cannot be read, none: its look says why."""
    from tidegate.errors import LakeError

    try:
        return tables.column_names(table)
    except LakeError:
        return []


def _seen(project: Project) -> list[str]:
    """Name the tables that were there once; a check makes no store where there is none."""
    from tidegate.wiring import open_parts

    scheme, _, path = project.settings.store_url.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        return []
    with open_parts(project) as parts:
        return list(parts.store.offsets.all())


def _analysed(parts: Parts) -> list[Problem]:
    from tidegate.engine.analysis import analyse
    from tidegate.errors import Problem

    with parts.spark() as spark:
        return [
            Problem(f"views/{view}.sql", line, "", message)
            for view, line, message in analyse(spark, parts.tables, parts.project.definitions)
        ]


def apply(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference and change nothing.")
    ] = False,
) -> None:
    """Bring the project's definitions into the store; shows the difference first."""
    with opened(context) as parts:
        changes = changes_of(parts)
        for line in changes.lines():
            print(line)
        if not changes:
            print("Nothing to apply: the store holds these very definitions.")
        elif dry_run:
            print("Nothing was changed.")
        else:
            apply_changes(parts, changes)
            print("Applied.")


def changes_of(parts: Parts) -> Changes:
    """Compare the project with the store; raises ProjectError where positions would not fit it."""
    from tidegate.model.lineage import difference

    applied = {
        topic: applied.definition for topic, applied in parts.store.lineages.current().items()
    }
    changes = difference(applied, parts.project.definitions)
    _require_fitting_shards(parts, changes)
    return changes


def _require_fitting_shards(parts: Parts, changes: Changes) -> None:
    """Refuse other shards over a table whose topics have taken rows already."""
    from tidegate.errors import ProjectError
    from tidegate.model.failed import FailedState
    from tidegate.model.resharding import misfit

    changed = {definition.entry: definition for definition in (*changes.added, *changes.new)}
    if not changed:
        return
    offsets = parts.store.offsets.all()
    counts = parts.store.failures.counts()
    waiting = {topic: states.get(FailedState.WAITING, 0) for topic, states in counts.items()}
    problems = []
    for definition in changed.values():
        before = _last_applied(parts.store, definition.entry, offsets)
        message = misfit(before, definition, offsets, waiting) if before else ""
        if message:
            entry = parts.project.entries[definition.topic]
            problems.append(entry.problem("shards", message))
    if problems:
        raise ProjectError(problems)


def _last_applied(store: Store, entry: str, topics: Iterable[str]) -> Definition | None:
    """Give the definition of an entry that was applied last, of one that was removed too."""
    own = [topic for topic in topics if topic.partition(":")[0] == entry]
    versions = [applied for topic in own for applied in store.lineages.history(topic)]
    newest = max(versions, key=lambda applied: applied.updated_at, default=None)
    return newest.definition if newest else None


def apply_changes(parts: Parts, changes: Changes) -> None:
    """Write the changed definitions, as a new version of each topic."""
    parts.store.lineages.apply(
        [*changes.added, *changes.new], changes.removed, user(), parts.runtime.now()
    )
