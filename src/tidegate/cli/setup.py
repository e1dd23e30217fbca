"""`doctor`: what of the machine and the project works, what does not, and what to do."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.output import Json, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command()(doctor)


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
    from tidegate.engine.java import find_java, java_version

    java = find_java()
    return f"Java {java_version(java)} at {java}"


def _jars() -> str:
    from tidegate.engine.jars import jars_folder, spark_jars

    if not jars_folder().is_dir():
        return f"not fetched yet; the first run puts them into {jars_folder()}"
    return f"{len(spark_jars())} in {jars_folder()}"


def _project(context: typer.Context) -> str:
    from tidegate.cli.opening import read_project

    project = read_project(context)
    project.require_sound()
    return f"{len(project.definitions)} entries, {len(project.views)} views in {project.folder}"


def _store(context: typer.Context) -> str:
    from tidegate.cli.opening import read_project
    from tidegate.wiring import open_parts

    project = read_project(context)
    with open_parts(project) as parts:
        topics = len(parts.store.offsets.all())
    scheme = project.settings.store.url.partition(":")[0]
    return f"{scheme}, {topics} positions"


def _lake(context: typer.Context) -> str:
    from tidegate.cli.opening import read_project
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
    return f"{path}, {len(list(Path(path).glob('*/*/_delta_log')))} tables"


def _spark(context: typer.Context) -> str:
    from tidegate.cli.opening import opened
    from tidegate.engine.probe import write_and_read

    with opened(context) as parts, parts.spark() as spark:
        return write_and_read(spark, parts.project.settings.lake_path)
