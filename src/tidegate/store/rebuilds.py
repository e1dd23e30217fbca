"""Shadows in the store: begun, published or abandoned, forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from tidegate.model.execution import Offset
from tidegate.model.lineage import Definition
from tidegate.model.position import START
from tidegate.model.rebuild import is_shadow
from tidegate.ports import Shadow
from tidegate.store.dialect import hold
from tidegate.store.lineages import add_versions, remove
from tidegate.store.offset_rows import change, enter, offset_of
from tidegate.store.reader import Reader
from tidegate.store.schema import (
    blocks,
    dataset_entities,
    datasets,
    etl_log,
    failed_rows,
    lineage,
    offsets,
)
from tidegate.store.writer import Writer

_US = "tidegate"
_KEPT_BY_TOPIC = (failed_rows, blocks, etl_log, offsets, lineage)
_SHADOWS = select(lineage.c.topic, lineage.c.definition, lineage.c.current).where(
    lineage.c.topic.contains("__rebuild_", autoescape=True)
)


class SqlRebuilds:
    """Implements `ports.Rebuilds`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def of(self, topic: str) -> Shadow | None:
        for row in self._reader.rows(_SHADOWS.where(lineage.c.current)):
            definition = Definition.from_dict(row["definition"])
            if definition.rebuilds == topic:
                return Shadow(row["topic"], definition, self._offset(row["topic"]))
        return None

    def _offset(self, shadow: str) -> Offset:
        row = self._reader.first(select(offsets).where(offsets.c.topic == shadow))
        return Offset(shadow, START) if row is None else offset_of(row)

    def begin(self, definition: Definition, at: int) -> None:
        self._writer.write(lambda connection: _begin(connection, definition, at))

    def abandon(self, shadow: str, at: int) -> None:
        self._writer.write(lambda connection: remove(connection, [shadow], _US, at))

    def abandoned(self) -> Sequence[str]:
        rows = self._reader.rows(_SHADOWS.where(lineage.c.current.is_(False)))
        found = {row["topic"] for row in rows if row["definition"].get("rebuilds")}
        return sorted(filter(is_shadow, found))

    def forget(self, shadow: str) -> None:
        self._writer.write(lambda connection: _forget(connection, shadow))


def _begin(connection: Connection, definition: Definition, at: int) -> None:
    # Two that begin at once would each build a table of their own.
    hold(connection, "lineage")
    for row in connection.execute(_SHADOWS.where(lineage.c.current)).mappings():
        if row["definition"].get("rebuilds") == definition.rebuilds:
            return
    enter(connection, definition.topic, at)
    stale = select(offsets.c.stale).where(offsets.c.topic == definition.rebuilds)
    change(connection, definition.topic, {"stale": connection.execute(stale).scalar()}, at)
    add_versions(connection, [definition], _US, at)


def _forget(connection: Connection, shadow: str) -> None:
    for table in _KEPT_BY_TOPIC:
        connection.execute(delete(table).where(table.c.topic == shadow))
    for table in (dataset_entities, datasets):
        connection.execute(delete(table).where(table.c.flow_id == shadow))
