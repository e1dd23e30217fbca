"""`init`, `check`, `apply`, `doctor`: a project made, judged and applied, and what it needs."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.output import (
    Json,
    counted,
    opened,
    print_json,
    print_table,
    read_project,
    user,
)

if TYPE_CHECKING:
    from tidegate.errors import Problem
    from tidegate.model.flow import Changes
    from tidegate.project.folder import Project
    from tidegate.wiring import Parts


def register(app: typer.Typer) -> None:
    for command in (init, check, apply, doctor):
        app.command()(command)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Make a project that runs, to read and to change."""
    from tidegate.project.folder import make_project

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
    from tidegate.wiring import KINDS, open_parts

    project = read_project(context)
    found = list(project.problems)
    if project.configured:
        found += [problem for kind in KINDS.values() for problem in kind.check(project)]
    if spark and not any(not problem.warning for problem in found):
        with open_parts(project) as parts, parts.spark() as host:
            for kind in KINDS.values():
                found += kind.analyse(parts, host)
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
        counts = (*_flows(project), (len(project.views), "view"))
        verdict = ((len(problems), "problem"), (len(warnings), "warning"))
        print(f"{_counted(counts)}: {_counted(verdict)}")
    if problems:
        raise typer.Exit(2)


def _flows(project: Project) -> list[tuple[int, str]]:
    """Count what is built, by those kinds that the project has."""
    from tidegate.model.looks import SOURCE
    from tidegate.wiring import KINDS

    built = Counter(d.flow.kind for d in project.definitions.values() if d.processor != SOURCE)
    counts = [(built[kind], one.reader.noun) for kind, one in KINDS.items()]
    return [count for count in counts if count[0]] or counts[:1]


def _counted(counts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(counted(count, name) for count, name in counts)


def _row(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.file,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
    }


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
    """Compare the project with the store; raises ProjectError where what was done would not fit."""
    from tidegate.errors import ProjectError
    from tidegate.model.flow import difference
    from tidegate.wiring import KINDS

    current = parts.store.definitions.current()
    applied = {flow: one.definition for flow, one in current.items()}
    changes = difference(applied, parts.project.definitions)
    problems = _other_kinds(parts, changes)
    if not problems:
        problems = [one for kind in KINDS.values() for one in kind.misfits(parts, changes)]
    if problems:
        raise ProjectError(problems)
    return changes


def _other_kinds(parts: Parts, changes: Changes) -> list[Problem]:
    """Refuse a flow under the name of one of another kind: its position says nothing to it."""
    project, store = parts.project, parts.store
    problems: list[Problem] = []
    for flow in store.offsets.some([one.flow.id for one in changes.brought]):
        now = project.definitions[flow].flow.kind
        kinds = {applied.definition.flow.kind for applied in store.definitions.history(flow)}
        for before in kinds - {now}:
            message = f"was a {before} whose position the store keeps; give this {now} another name"
            problems.append(project.entries[flow].problem("", f"{flow} {message}"))
    return problems


def apply_changes(parts: Parts, changes: Changes) -> None:
    """Write the changed definitions, as a new version of each topic."""
    parts.store.definitions.apply(
        [*changes.added, *changes.new], changes.removed, user(), parts.runtime.now()
    )


def doctor(
    context: typer.Context,
    json: Json = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark and write a small table.")
    ] = False,
) -> None:
    """Say what works here and what does not: Python, Java, jars, project, store, lake, Spark."""
    findings = list(_findings(context, spark))
    if json:
        keys = ("part", "ok", "found")
        print_json([dict(zip(keys, finding, strict=True)) for finding in findings])
    else:
        print_table(("part", "works", "found"), findings, empty="")
    if not all(ok for _, ok, _ in findings):
        raise typer.Exit(1)


def _findings(context: typer.Context, spark: bool) -> Iterator[tuple[str, bool, str]]:
    yield "python", True, f"{platform.python_version()}, sqlite {_sqlite()}"
    yield _tried("java", _java)
    yield _tried("jars", _jars)
    yield _tried("classes", lambda: _classes(make=spark))
    yield _tried("project", lambda: _project(context))
    yield _tried("store", lambda: _store(context))
    yield _tried("lake", lambda: _lake(context))
    if spark:
        yield _tried("spark", lambda: _spark(context))


def _tried(part: str, look: Callable[[], str]) -> tuple[str, bool, str]:
    from tidegate.errors import TidegateError

    try:
        return part, True, look()
    except TidegateError as error:
        return part, False, str(error)


def _sqlite() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def _java() -> str:
    from tidegate.spark.java import find_java, java_version

    java = find_java()
    return f"Java {java_version(java)} at {java}"


def _jars() -> str:
    from tidegate.spark.jars import jars_folder, spark_jars

    if not jars_folder().is_dir():
        return f"not fetched yet; the first run puts them into {jars_folder()}"
    return f"{len(spark_jars())} in {jars_folder()}"


def _classes(*, make: bool) -> str:
    """Say whether Spark starts soon; asked to try Spark, make what lets it."""
    from tidegate.spark.archive import archive_for, make_archive
    from tidegate.spark.java import find_java

    found = make_archive() if make else archive_for(find_java())
    if found is None:
        return "no archive of Spark's classes; `tidegate doctor --spark` makes one (a minute, once)"
    return f"{found.stat().st_size / 1e6:.0f} MB of Spark's classes in {found}"


def _project(context: typer.Context) -> str:
    from tidegate.cli.output import read_project

    project = read_project(context)
    project.require_sound()
    entries, views = counted(len(project.definitions), "entry"), len(project.views)
    return f"{entries}, {counted(views, 'view')} in {project.folder}"


def _store(context: typer.Context) -> str:
    from tidegate.cli.output import read_project
    from tidegate.wiring import open_parts

    project = read_project(context)
    with open_parts(project) as parts:
        topics = len(parts.store.offsets.all())
    scheme = project.settings.store.url.partition(":")[0]
    return f"{scheme}, {counted(topics, 'position')}"


def _lake(context: typer.Context) -> str:
    from tidegate.cli.output import read_project
    from tidegate.errors import LakeError

    path = read_project(context).settings.lake_path
    if "://" in path:
        return f"{path}; `doctor --spark` tries it"
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        probe = Path(path) / ".tidegate-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LakeError(f"{path} cannot be written: {error.strerror}") from None
    return f"{path}, {counted(len(list(Path(path).glob('*/*/_delta_log'))), 'table')}"


def _spark(context: typer.Context) -> str:
    from tidegate.cli.output import opened
    from tidegate.spark.session import write_and_read

    with opened(context) as parts, parts.spark(quick=True) as spark:
        return write_and_read(spark, parts.project.settings.lake_path)
