"""The SQL files of a project, and what is wrong with those that do not read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import Problem
from tidegate.model.viewtext import ViewText, read_view
from tidegate.model.viewtree import ViewSyntaxError

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
