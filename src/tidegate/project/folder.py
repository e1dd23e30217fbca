"""A project folder found, made, and turned into definitions, with all that is wrong in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Generic

from tidegate.errors import Problem, ProjectError, TidegateError, WrongUse
from tidegate.model.flow import Definition
from tidegate.project.yaml import Entry, F, Form, read_entries
from tidegate.settings import FILE, Settings, load_settings
from tidegate.sql.reading import ViewSyntaxError, ViewText, read_view


@dataclass(frozen=True)
class Project:
    """Everything that a project folder says."""

    settings: Settings
    definitions: Mapping[str, Definition]
    """Of every kind, by flow."""
    entries: Mapping[str, Entry[Any]]
    """By flow; the shards of a table share theirs."""
    views: Mapping[str, ViewText]
    problems: tuple[Problem, ...]
    """All that is wrong, warnings included."""
    configured: bool = True
    """False when the settings do not read; then they are the defaults."""

    @property
    def folder(self) -> Path:
        return self.settings.folder

    def require_sound(self) -> None:
        """Raise ProjectError if anything but a warning was found."""
        wrong = [problem for problem in self.problems if not problem.warning]
        if wrong:
            raise ProjectError(wrong)


@dataclass(frozen=True)
class Shared:
    """What a project says to flows of every kind."""

    settings: Settings
    views: Views
    logs: Mapping[str, ViewText]
    """By table."""
    variables: Mapping[str, Any] | None
    """What `:name` stands for; None when that is not known, since the settings do not read."""


@dataclass(frozen=True)
class Found:
    """What a kind made of its entries."""

    flows: Sequence[tuple[Definition, Entry[Any]]]
    problems: Sequence[Problem]


@dataclass(frozen=True)
class KindReader(Generic[F]):
    """How a project's flows of one kind are read."""

    noun: str
    """What people call one."""
    form: Form[F]
    read: Callable[[Sequence[Entry[F]], Shared], Found]


def find_project(given: Path | None) -> Path:
    """Find the folder: the given one, TIDEGATE_PROJECT, or the nearest above that is a project."""
    named = given
    if named is None and os.getenv("TIDEGATE_PROJECT"):
        named = Path(os.environ["TIDEGATE_PROJECT"])
    try:
        if named is not None:
            if not (named / FILE).is_file():
                raise WrongUse(
                    f"{named} is not a project: it has no {FILE}; `tidegate init DIR` makes one"
                )
            return named.resolve()
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / FILE).is_file():
                return folder
    except OSError as error:
        raise WrongUse(
            f"{named or 'the current folder'} cannot be read: {error.strerror}"
        ) from None
    raise WrongUse(
        f"no {FILE} in {here} or above; go to a project, name one with -C DIR,"
        " or make one: tidegate init DIR"
    )


def load_project(folder: Path, kinds: Iterable[KindReader[Any]]) -> Project:
    """Read a project whole; its problems come with it, all in one go."""
    views, problems = read_views(folder)
    logs, wrong = read_logs(folder)
    problems += wrong
    configured = True
    try:
        settings = load_settings(folder)
    except ProjectError as error:
        problems += error.problems
        settings, configured = Settings.model_construct(folder=folder.resolve()), False
    shared = Shared(settings, views, logs, settings.vars if configured else None)
    definitions: dict[str, Definition] = {}
    entries: dict[str, Entry[Any]] = {}
    for kind in kinds:
        written, wrong = _read_files(folder, kind.form)
        found = kind.read(written, shared)
        problems += [*wrong, *found.problems]
        for definition, entry in found.flows:
            flow = definition.flow.id
            before = entries.get(flow)
            if before is None:
                definitions[flow], entries[flow] = definition, entry
            else:
                problems.append(entry.problem("", stands_already(flow, before)))
    every = tuple(sorted(set(problems)))
    return Project(settings, definitions, entries, views.texts, every, configured)


def stands_already(flow: str, before: Entry[Any]) -> str:
    """Say that a name is taken: a flow has one, whatever its kind."""
    return f"{flow} stands already at {before.file}:{before.line}"


def _read_files(folder: Path, form: Form[F]) -> tuple[list[Entry[F]], list[Problem]]:
    entries: list[Entry[F]] = []
    problems: list[Problem] = []
    for pattern in form.files:
        for path in sorted([*folder.glob(f"{pattern}.yaml"), *folder.glob(f"{pattern}.yml")]):
            found, wrong = read_entries(path, str(path.relative_to(folder)), form)
            entries += found
            problems += wrong
    return entries, problems


_LARGEST_VIEW = 1_000_000
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass
class Views:
    """The files of `views/`, by name; names are taken without regard to case, as Spark does."""

    texts: dict[str, ViewText] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Every view that has a file, also one whose text does not read."""

    def problem(
        self, name: str, line: int, field: str, message: str, *, warning: bool = False
    ) -> Problem:
        return Problem(self.files[name], line, field, message, warning)


def read_views(folder: Path) -> tuple[Views, list[Problem]]:
    """Read every file of `views/`, and say what is wrong with those that do not read."""
    views = Views()
    problems: list[Problem] = []
    for path in sorted((folder / "views").glob("*.sql")):
        shown, name = f"views/{path.name}", path.stem.lower()
        with _telling(shown, problems):
            if not _NAME.fullmatch(name):
                raise ViewSyntaxError(0, "its name must be letters, digits and _ only")
            if name in views.files:
                raise ViewSyntaxError(0, f"is called as {views.files[name]} is, but for its case")
            views.files[name] = shown
            if path.stat().st_size > _LARGEST_VIEW:
                raise ViewSyntaxError(0, "is larger than 1 MB; split it into several views")
            views.texts[name] = read_view(name, path.read_text(encoding="utf-8"))
    return views, problems


def read_logs(folder: Path) -> tuple[dict[str, ViewText], list[Problem]]:
    """Read `logs/<table>.sql`: queries over what a block brought into a table, by its name."""
    logs: dict[str, ViewText] = {}
    problems: list[Problem] = []
    for path in sorted((folder / "logs").glob("*.sql")):
        with _telling(f"logs/{path.name}", problems):
            logs[path.stem.lower()] = read_view(path.stem, path.read_text(encoding="utf-8"))
    return logs, problems


@contextmanager
def _telling(shown: str, problems: list[Problem]) -> Iterator[None]:
    """Turn a file that does not read into a problem, and go on with the next."""
    try:
        yield
    except ViewSyntaxError as error:
        problems.append(Problem(shown, error.line, "", error.message))
    except UnicodeDecodeError:
        problems.append(Problem(shown, 0, "", "is not UTF-8 text"))
    except OSError as error:
        problems.append(Problem(shown, 0, "", f"cannot be read: {error.strerror}"))


def make_project(folder: Path) -> list[str]:
    """Write the template into a new or empty folder, land its data, and name the files."""
    made: list[str] = []
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise WrongUse(f"{folder} is not empty; name a new folder")
        with as_file(files("tidegate") / "templates" / "project") as template:
            for path in sorted(path for path in template.rglob("*") if path.is_file()):
                if "__pycache__" in path.parts:
                    continue
                name = str(path.relative_to(template))
                target = folder / (".gitignore" if name == "gitignore" else name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
                made.append(str(target.relative_to(folder)))
    except OSError as error:
        raise WrongUse(f"{folder} cannot be written: {error.strerror}") from None
    _land(folder.resolve())
    return made


def _land(folder: Path) -> None:
    landed = subprocess.run(
        [sys.executable, folder / "land.py"], capture_output=True, text=True, check=False
    )
    if landed.returncode != 0:
        said = landed.stderr.strip().splitlines() or ["it said nothing"]
        raise TidegateError(
            f"the project in {folder} is made, but its land.py failed ({said[-1][:300]});"
            " run it again by hand"
        )
