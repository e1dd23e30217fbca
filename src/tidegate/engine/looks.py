"""Looks at Delta tables without a JVM: how far they have come, their files, recorded writes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from tidegate.engine.commits import commits, data_version_of, our_metadata, rows_written
from tidegate.engine.handles import Handles
from tidegate.engine.logend import LogEnd
from tidegate.engine.positions import (
    PositionColumns,
    as_arrow,
    first_pos_after,
    newest_of,
    position_columns,
    statistics,
    unread_of,
)
from tidegate.errors import LakeError
from tidegate.model.blocks import FileStatistics
from tidegate.model.facts import Ahead, Look
from tidegate.model.lineage import Definition
from tidegate.model.position import Position
from tidegate.model.rebuild import is_shadow
from tidegate.ports import Recorded


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last look at a table: good for as long as its log ends where it did."""

    look: Look
    end: LogEnd


class Tables:
    """The Delta tables of a lake, one folder a table below one a database."""

    def __init__(
        self, lake: str, now: Callable[[], int], options: Mapping[str, str] | None = None
    ) -> None:
        self._lake = lake.rstrip("/")
        self._now = now
        self._options = dict(options or {})
        """How to reach a lake that is not a folder."""
        self._handles = Handles(self._options)
        self._seen: dict[tuple[str, str, str, bool], _Seen] = {}

    def path(self, table: str) -> str:
        """Give the place of a table: `<lake>/<db>/<table>`."""
        database, _, name = table.partition(".")
        return f"{self._lake}/{database}/{name}"

    def open(self, table: str) -> DeltaTable | None:
        """Open a table at its newest version; None when there is none."""
        path = self.path(table)
        try:
            return self._handles.open(path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            if "://" not in path and not (Path(path) / "_delta_log").exists():
                return None
            raise LakeError(f"{table} at {path} cannot be read: {first_line(error)}") from error

    def exists(self, table: str) -> bool:
        path = self.path(table)
        if "://" in path:
            return self.open(table) is not None
        # Opening the log takes ten times as long, and this is asked a dozen times a block.
        return next((Path(path) / "_delta_log").glob("*.json"), None) is not None

    def is_blank(self, table: str) -> bool:
        """Tell whether a table was made and never written: a failed first load leaves it so."""
        found = self.open(table)
        if found is None or found.file_uris():
            return False
        return all(str(commit.get("operation")).startswith("CREATE") for commit in commits(found))

    def versions(self, tables: Sequence[str]) -> dict[str, int]:
        """Give the newest version of each of the tables that exist."""
        opened = {table: self.open(table) for table in tables}
        return {table: found.version() for table, found in opened.items() if found is not None}

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look:
        """See how far a table has come; the time is taken before the table is read."""
        at = self._now()
        key = (table, pos, id, data_version)
        seen = self._seen.pop(key, None)
        if seen and not seen.end.has_grown and seen.end.stands:
            self._seen[key] = seen
            return seen.look.again(at)
        look = self._read(table, pos, id, at, data_version=data_version)
        path = self.path(table)
        end = LogEnd.of(path, look.version) if "://" not in path else None
        if end is not None:
            self._seen[key] = _Seen(look, end)
        return look

    def _read(self, table: str, pos: str, id: str, at: int, *, data_version: bool) -> Look:
        found = self.open(table)
        if found is None:
            return Look(table, at, exists=False)
        version = found.version()
        changed = data_version_of(found) if data_version else -1
        columns = position_columns(found, pos, id)
        if columns is None:
            return Look(table, at, positioned=False, version=version, data_version=changed)
        return Look(
            table,
            at,
            newest=newest_of(found, columns),
            unread=unread_of(found, columns),
            version=version,
            data_version=changed,
        )

    def columns(self, table: str, pos: str, id: str) -> PositionColumns | None:
        """Tell which columns carry the position of a table; None without table or columns."""
        found = self.open(table)
        return None if found is None else position_columns(found, pos, id)

    def column_names(self, table: str) -> list[str]:
        found = self.open(table)
        return [] if found is None else [field.name for field in found.schema().fields]

    def files(
        self, table: str, pos: str, id: str, after: Position
    ) -> tuple[PositionColumns, list[FileStatistics]] | None:
        """Give the columns that carry a table's position, and the files that may lie behind one.

        Both from one reading of the log, which is what takes the time. None as for `columns`.
        """
        found = self.open(table)
        columns = position_columns(found, pos, id) if found else None
        if found is None or columns is None:
            return None
        return columns, statistics(found, columns, after)

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead:
        """See what lies beyond a position: the first row's pos, and about how many rows."""
        found = self.open(table)
        columns = position_columns(found, pos, id) if found else None
        if found is None or columns is None:
            return Ahead(None)
        beyond = [file for file in statistics(found, columns, last) if file.last > last]
        rows = sum(file.rows for file in beyond)
        crossing = [file for file in beyond if file.least_pos <= last.pos]
        if all(file.exact and file.first > last for file in crossing):
            return Ahead(min((file.least_pos for file in beyond), default=None), rows)
        return Ahead(first_pos_after(found, columns, last), rows)

    def added(self, table: str, version: int) -> list[Mapping[str, Any]]:
        """Give the files that a commit added, as it wrote them down."""
        handler = DeltaStorageHandler(self.path(table), self._options)
        with handler.open_input_file(f"_delta_log/{version:020d}.json") as commit:
            lines = commit.read(commit.size()).splitlines()
        return [json.loads(line)["add"] for line in lines if line.startswith(b'{"add"')]

    def partition_columns(self, table: str) -> list[str]:
        found = self.open(table)
        return [] if found is None else list(found.metadata().partition_columns)

    def rows(self, table: str, version: int) -> int:
        """Count the rows of a version, by the log."""
        return DeltaTable(self.path(table), version=version).count()

    def files_below(self, table: str, size: int) -> dict[str, int]:
        """Count the files below a size, by partition."""
        found = self.open(table)
        if found is None:
            return {}
        actions = as_arrow(found.get_add_actions(flatten=True))
        small = actions.filter(pc.less(actions.column("size_bytes"), size))
        names = [name for name in small.column_names if name.startswith("partition.")]
        if not names:
            return {"": small.num_rows} if small.num_rows else {}
        return Counter(map(repr, small.select(names).to_pylist()))

    def origin(self, table: str) -> tuple[int, Mapping[str, str]]:
        """Tell when a table was made, and its properties."""
        found = self.open(table)
        metadata = found.metadata() if found else None
        return (metadata.created_time or 0, metadata.configuration) if metadata else (0, {})

    def replaced_at(self, table: str, version: int) -> int | None:
        """Tell when a version ceased to be the newest; None while it is, 0 when nobody knows."""
        found = self.open(table)
        if found is None or found.version() <= version:
            return None
        times = {commit["version"]: commit["timestamp"] for commit in commits(found)}
        return int(times.get(version + 1, 0))

    def drop(self, table: str) -> None:
        """Delete the files of a table that a rebuild made, and of no other."""
        if not is_shadow(table):
            raise LakeError(f"{table} was not made by a rebuild: its files are not ours to delete")
        path = self.path(table)
        try:
            if "://" in path:
                DeltaStorageHandler(path).delete_dir("")
            elif Path(path).exists():
                # The other way would leave the empty folders.
                shutil.rmtree(path)
        except OSError as error:
            raise LakeError(f"{table} cannot be deleted: {first_line(error)}") from error

    def recorded(self, definition: Definition) -> Recorded:
        """Read what the destination's log says of the topic's last write."""
        found = self.open(definition.table)
        seq = found.transaction_version(app_id(definition.topic)) if found else None
        if found is None or seq is None:
            return Recorded(0)
        for commit in commits(found):
            written = our_metadata(commit)
            if written.get("topic") == definition.topic and written.get("seq") == seq:
                return Recorded(
                    seq,
                    Position(*written["last"]),
                    Position(*written["next"]),
                    int(commit["version"]),
                    written.get("execution"),
                    rows_written(commit),
                )
        return Recorded(seq)


def app_id(topic: str) -> str:
    """Name a topic in Delta's transactions: the version under it is the block's seq."""
    return f"tidegate/{topic}"


def first_line(error: BaseException) -> str:
    """Give the first line of an error's text, without its tail."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
