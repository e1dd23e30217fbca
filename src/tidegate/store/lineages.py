"""The lineage as applied: one row a topic and version, nothing ever overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Connection, Text, bindparam, func, insert, select, type_coerce, update

from tidegate.errors import UnknownName
from tidegate.model.lineage import Definition
from tidegate.ports import Applied
from tidegate.store.dialect import hold
from tidegate.store.reader import Reader
from tidegate.store.schema import lineage
from tidegate.store.statement import Row, Statement
from tidegate.store.writer import Writer

_NEWEST = select(func.max(lineage.c.version)).where(lineage.c.topic == bindparam("on_topic"))
_SUPERSEDE = (
    update(lineage)
    .where(lineage.c.topic == bindparam("on_topic"), lineage.c.current)
    .values(current=False)
)
_ADD = insert(lineage)
# The text as it stands: nearly always it was read before.
_TEXT = type_coerce(lineage.c.definition, Text).label("text")
_IN_FORCE = Statement(
    select(_TEXT, lineage.c.version, lineage.c.user, lineage.c.created_at).where(
        lineage.c.topic == bindparam("on_topic"), lineage.c.current
    )
)
_REMEMBERED = 2_000
"""Texts of definitions that need not be read again."""
_CURRENT = select(lineage).where(lineage.c.current).order_by(lineage.c.topic)
# A version that is put in force or taken out of it leaves the time in its row, or its own row.
_STAMP = select(
    func.count().filter(lineage.c.current), func.count(), func.max(lineage.c.updated_at)
)


class SqlLineages:
    """Implements `ports.Lineages`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def current(self) -> Mapping[str, Applied]:
        found = {row["topic"]: _applied_of(row) for row in self._reader.rows(_CURRENT)}
        return {topic: one for topic, one in found.items() if not one.definition.rebuilds}

    def applied(self, topic: str) -> Applied | None:
        return _remembered(self._reader.first_of(_IN_FORCE, {"on_topic": topic}))

    def stamp(self) -> object:
        return self._reader.plain(_STAMP)

    def version(self, topic: str, version: int) -> Definition:
        found = self._reader.first(
            select(lineage.c.definition).where(
                lineage.c.topic == topic, lineage.c.version == version
            )
        )
        if found is None:
            known = ", ".join(str(applied.version) for applied in self.history(topic))
            raise UnknownName(
                f"the store has no version {version} of {topic}, only {known or 'none at all'};"
                " apply the project again"
            )
        return Definition.from_dict(found["definition"])

    def history(self, topic: str) -> Sequence[Applied]:
        """Give every version of a topic, oldest first, also of one that was removed."""
        rows = self._reader.rows(
            select(lineage).where(lineage.c.topic == topic).order_by(lineage.c.version)
        )
        return [_applied_of(row) for row in rows]

    def apply(
        self, changed: Sequence[Definition], removed: Sequence[str], user: str, at: int
    ) -> None:
        def write(connection: Connection) -> None:
            # Two that apply at once would count the same version up.
            hold(connection, "lineage")
            remove(connection, removed, user, at)
            add_versions(connection, changed, user, at)

        self._writer.write(write)


def in_force(connection: Connection, topic: str) -> Applied | None:
    """Give the definition in force, as seen by a transaction."""
    return _remembered(_IN_FORCE.first(connection, {"on_topic": topic}))


def _remembered(row: Row | None) -> Applied | None:
    return None if row is None else _applied(_read(row["text"]), row)


@lru_cache(_REMEMBERED)
def _read(text: str) -> Definition:
    return Definition.from_dict(orjson.loads(text))


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
    """Put definitions in force, each as the next version of its topic."""
    if not definitions:
        return
    newest = {
        one.topic: connection.execute(_NEWEST, {"on_topic": one.topic}).scalar() or 0
        for one in definitions
    }
    superseded = [{"on_topic": topic, "updated_at": at} for topic, n in newest.items() if n]
    if superseded:
        connection.execute(_SUPERSEDE, superseded)
    rows = [
        {
            "topic": one.topic,
            "version": newest[one.topic] + 1,
            "definition": one.as_dict(),
            "user": user,
            "current": True,
            "created_at": at,
            "updated_at": at,
        }
        for one in definitions
    ]
    connection.execute(_ADD, rows)


def _applied(definition: Definition, row: Mapping[Any, Any]) -> Applied:
    # The row changes once more when it is superseded; people ask when it was applied.
    return Applied(definition, row["version"], row["user"], row["created_at"])


def _applied_of(row: Mapping[Any, Any]) -> Applied:
    return _applied(Definition.from_dict(row["definition"]), row)
