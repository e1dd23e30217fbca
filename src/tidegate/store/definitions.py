"""The definitions as applied, of every kind: one row a flow and version, nothing overwritten.

How a definition is read back is the kind's own business: whoever opens the store hands that over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Connection, Text, bindparam, func, insert, select, type_coerce, update

from tidegate.errors import StoreError, UnknownName
from tidegate.model.flow import Definition, Kind
from tidegate.ports.store import Applied
from tidegate.store.backends import hold
from tidegate.store.schema import lineage
from tidegate.store.writer import Reader, Row, Statement, Writer

ReadDefinition = Callable[[Mapping[str, Any]], Definition]
"""Reads what a definition's `as_dict` gave, by this version or an older one."""
_NEWEST = select(func.max(lineage.c.version)).where(lineage.c.topic == bindparam("on_topic"))
_SUPERSEDE = (
    update(lineage)
    .where(lineage.c.topic == bindparam("on_topic"), lineage.c.current)
    .values(current=False)
)
_ADD = insert(lineage)


_TEXT = type_coerce(lineage.c.definition, Text).label("text")
ROWS = select(
    lineage.c.topic, lineage.c.kind, _TEXT, lineage.c.version, lineage.c.user, lineage.c.created_at
)
_IN_FORCE = Statement(ROWS.where(lineage.c.topic == bindparam("on_topic"), lineage.c.current))
_REMEMBERED = 2_000
"""Texts of definitions that need not be read again."""
_CURRENT = ROWS.where(lineage.c.current).order_by(lineage.c.topic)


# A version that is put in force or taken out of it leaves the time in its row, or its own row.
_STAMP = select(
    func.count().filter(lineage.c.current), func.count(), func.max(lineage.c.updated_at)
)


class DefinitionReader:
    """Turns rows into definitions, each kind by its own reader; nearly all were read before."""

    def __init__(self, readers: Mapping[Kind, ReadDefinition]) -> None:
        self._readers = dict(readers)
        self._read = lru_cache(_REMEMBERED)(self._read_text)

    def in_force(self, connection: Connection, topic: str) -> Applied | None:
        """Give the definition in force, as seen by a transaction."""
        row = _IN_FORCE.first(connection, {"on_topic": topic})
        return None if row is None else self.applied(row)

    def applied(self, row: Mapping[Any, Any] | Row) -> Applied:
        # The row changes once more when it is superseded; people ask when it was applied.
        definition = self._read(row["kind"], row["text"])
        return Applied(definition, row["version"], row["user"], row["created_at"])

    def _read_text(self, kind: str, text: str) -> Definition:
        read = {known.value: reader for known, reader in self._readers.items()}.get(kind)
        if read is None:
            raise StoreError(
                f"the store holds a flow of the kind {kind}, which this Tidegate does not know;"
                " update Tidegate to use it"
            )
        return read(orjson.loads(text))


class SqlDefinitions:
    """Implements `ports.Definitions`."""

    def __init__(self, reader: Reader, writer: Writer, definitions: DefinitionReader) -> None:
        self._reader, self._writer, self._definitions = reader, writer, definitions

    def current(self, kind: Kind | None = None) -> Mapping[str, Applied]:
        wanted = _CURRENT if kind is None else _CURRENT.where(lineage.c.kind == kind.value)
        found = {row["topic"]: self._definitions.applied(row) for row in self._reader.rows(wanted)}
        return {flow: one for flow, one in found.items() if not one.definition.rebuilds}

    def applied(self, flow: str) -> Applied | None:
        row = self._reader.first_of(_IN_FORCE, {"on_topic": flow})
        return None if row is None else self._definitions.applied(row)

    def stamp(self) -> object:
        return self._reader.plain(_STAMP)

    def version(self, flow: str, version: int) -> Definition:
        found = self._reader.first(
            ROWS.where(lineage.c.topic == flow, lineage.c.version == version)
        )
        if found is None:
            known = ", ".join(str(applied.version) for applied in self.history(flow))
            raise UnknownName(
                f"the store has no version {version} of {flow}, only {known or 'none at all'};"
                " apply the project again"
            )
        return self._definitions.applied(found).definition

    def history(self, flow: str) -> Sequence[Applied]:
        """Give every version of a flow, oldest first, also of one that was removed."""
        rows = self._reader.rows(ROWS.where(lineage.c.topic == flow).order_by(lineage.c.version))
        return [self._definitions.applied(row) for row in rows]

    def apply(
        self, changed: Sequence[Definition], removed: Sequence[str], user: str, at: int
    ) -> None:
        def write(connection: Connection) -> None:
            # Two that apply at once would count the same version up.
            hold(connection, "lineage")
            remove(connection, removed, user, at)
            add_versions(connection, changed, user, at)

        self._writer.write(write)


def remove(connection: Connection, topics: Sequence[str], user: str, at: int) -> None:
    """Take definitions out of force; their history stays."""
    connection.execute(
        update(lineage)
        .where(lineage.c.topic.in_(topics), lineage.c.current)
        .values(current=False, removed_at=at, removed_by=user, updated_at=at)
    )


def add_versions(
    connection: Connection, definitions: Sequence[Definition], user: str, at: int
) -> None:
    """Put definitions in force, each as the next version of its flow."""
    if not definitions:
        return
    flows = [one.flow for one in definitions]
    newest = {
        flow.id: connection.execute(_NEWEST, {"on_topic": flow.id}).scalar() or 0 for flow in flows
    }
    superseded = [{"on_topic": id, "updated_at": at} for id, n in newest.items() if n]
    if superseded:
        connection.execute(_SUPERSEDE, superseded)
    rows = [
        {
            "topic": flow.id,
            "kind": flow.kind.value,
            "version": newest[flow.id] + 1,
            "definition": one.as_dict(),
            "user": user,
            "current": True,
            "created_at": at,
            "updated_at": at,
        }
        for flow, one in zip(flows, definitions, strict=True)
    ]
    connection.execute(_ADD, rows)
