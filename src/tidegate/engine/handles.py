"""Tables kept open: a log that has grown is read on from where it was, not anew."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from tidegate.engine.logend import LogEnd

MOST_KEPT = 32
"""Tables that a thread keeps open; of ten thousand files, each takes some megabytes."""


@dataclass(frozen=True)
class _Kept:
    table: DeltaTable
    end: LogEnd


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
        if kept is None or not kept.end.stands:
            table = DeltaTable(path, storage_options=self._options)
        elif kept.end.has_grown:
            table = kept.table
            table.update_incremental()
        else:
            mine[path] = kept
            return kept.table
        self._keep(path, table)
        return table

    def _keep(self, path: str, table: DeltaTable) -> None:
        end = LogEnd.of(path, table.version())
        if end is None:
            return
        mine = self._mine()
        mine[path] = _Kept(table, end)
        if len(mine) > MOST_KEPT:
            mine.popitem(last=False)

    def _mine(self) -> OrderedDict[str, _Kept]:
        if not hasattr(self._threads, "kept"):
            self._threads.kept = OrderedDict[str, _Kept]()
        kept: OrderedDict[str, _Kept] = self._threads.kept
        return kept
