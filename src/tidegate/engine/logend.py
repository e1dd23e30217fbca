"""Where a table's log ended when it was read: cheap to ask whether it still does."""

from __future__ import annotations

import os
from dataclasses import dataclass

_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The newest entry of a log in a folder, and the one that will follow it."""

    newest: str
    identity: _Identity
    """What tells it from one of the same name, in a table that was put in its place."""
    next: str

    @classmethod
    def of(cls, path: str, version: int) -> LogEnd | None:
        """Find the end of the log of a table that was read at a version; None when it is gone."""
        newest, next = (f"{path}/_delta_log/{version + n:020d}.json" for n in (0, 1))
        identity = _identity(newest)
        return None if identity is None else cls(newest, identity, next)

    @property
    def stands(self) -> bool:
        """Whether what was read is still there: neither cut nor replaced."""
        return _identity(self.newest) == self.identity

    @property
    def has_grown(self) -> bool:
        # Not by pathlib: a manager asks this of every landed table, again and again.
        return os.access(self.next, os.F_OK)


def _identity(entry: str) -> _Identity | None:
    try:
        found = os.stat(entry)
    except OSError:
        # Gone, or hidden: it has to be read anew, and whoever reads it says what is wrong.
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
