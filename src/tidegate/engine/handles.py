"""Tables kept open: a log that has grown is read on from where it was, not anew."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

MOST_KEPT = 32
"""Tables that a thread keeps open; of ten thousand files, each takes some megabytes."""

_Identity = tuple[int, int, int]


@dataclass(frozen=True)
class _Kept:
    table: DeltaTable
    newest: str
    """The entry of the log that was the newest one."""
    identity: _Identity
    """What tells it from one of the same name, in a table that was put in its place."""
    next: str
    """The entry that will follow it."""


class Handles:
    """What each thread has open: a handle that is read on must not change under another's eyes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._threads = threading.local()

    def open(self, path: str) -> DeltaTable:
        """Open a table at its newest version; raises what deltalake raises."""
        if "://" in path:
            # There is no cheap look at a single entry: all of it is asked for.
            return DeltaTable(path, storage_options=self._options)
        mine = self._mine()
        # Out of there while it is looked at: what fails to be read on is not kept.
        kept = mine.pop(path, None)
        if kept is None or _identity(kept.newest) != kept.identity:
            table = DeltaTable(path, storage_options=self._options)
        elif os.access(kept.next, os.F_OK):
            table = kept.table
            table.update_incremental()
        else:
            mine[path] = kept
            return kept.table
        self._keep(path, table)
        return table

    def _keep(self, path: str, table: DeltaTable) -> None:
        newest, next = (f"{path}/_delta_log/{table.version() + n:020d}.json" for n in (0, 1))
        identity = _identity(newest)
        if identity is None:
            return
        mine = self._mine()
        mine[path] = _Kept(table, newest, identity, next)
        if len(mine) > MOST_KEPT:
            mine.popitem(last=False)

    def _mine(self) -> OrderedDict[str, _Kept]:
        if not hasattr(self._threads, "kept"):
            self._threads.kept = OrderedDict[str, _Kept]()
        kept: OrderedDict[str, _Kept] = self._threads.kept
        return kept


def _identity(entry: str) -> _Identity | None:
    try:
        found = os.stat(entry)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
