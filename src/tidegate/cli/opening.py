"""Finds and opens the project that a command is about."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tidegate.project import Project
    from tidegate.wiring import Parts


def read_project(context: typer.Context) -> Project:
    """Read the project, with its problems."""
    from tidegate.project import find_project, load_project

    given = context.find_root().obj
    return load_project(find_project(given if isinstance(given, Path) else None))


@contextmanager
def opened(context: typer.Context) -> Iterator[Parts]:
    """Read the project, require that it is sound, and open its parts."""
    from tidegate.wiring import open_parts

    project = read_project(context)
    project.require_sound()
    with open_parts(project) as parts:
        yield parts


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
