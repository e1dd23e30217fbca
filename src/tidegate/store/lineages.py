"""The lineage as applied: one row a topic and version, nothing ever overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, bindparam, func, insert, select, update

from tidegate.errors import UnknownName
from tidegate.model.lineage import Definition
from tidegate.ports import Applied
from tidegate.store.dialect import hold
from tidegate.store.reader import Reader
from tidegate.store.schema import lineage
from tidegate.store.writer import Writer

_IN_FORCE = select(lineage.c.definition).where(
    lineage.c.topic == bindparam("on_topic"), lineage.c.current
)


class SqlLineages:
    """Implements `ports.Lineages`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def current(self) -> Mapping[str, Applied]:
        rows = self._reader.rows(select(lineage).where(lineage.c.current).order_by(lineage.c.topic))
        found = {row["topic"]: _applied(row) for row in rows}
        return {topic: one for topic, one in found.items() if not one.definition.rebuilds}

    def applied(self, topic: str) -> Applied | None:
        row = self._reader.first(select(lineage).where(lineage.c.topic == topic, lineage.c.current))
        return None if row is None else _applied(row)

    def stamp(self) -> object:
        newest = func.max(lineage.c.updated_at)
        counted = select(func.count(), newest).where(lineage.c.current)
        removed = select(func.max(lineage.c.removed_at))
        return [tuple(row.values()) for one in (counted, removed) for row in self._reader.rows(one)]

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
        return [_applied(row) for row in rows]

    def apply(
        self, changed: Sequence[Definition], removed: Sequence[str], user: str, at: int
    ) -> None:
        def write(connection: Connection) -> None:
            # Two that apply at once would count the same version up.
            hold(connection, "lineage")
            remove(connection, removed, user, at)
            for definition in changed:
                add_version(connection, definition, user, at)

        self._writer.write(write)


def applied_definition(connection: Connection, topic: str) -> Definition | None:
    """Give the definition in force, as seen by a transaction."""
    found = connection.execute(_IN_FORCE, {"on_topic": topic}).scalar()
    return None if found is None else Definition.from_dict(found)


def remove(connection: Connection, topics: Sequence[str], user: str, at: int) -> None:
    """Take definitions out of force; their history stays."""
    connection.execute(
        update(lineage)
        .where(lineage.c.topic.in_(topics), lineage.c.current)
        .values(current=False, removed_at=at, removed_by=user, updated_at=at)
    )


def add_version(connection: Connection, definition: Definition, user: str, at: int) -> None:
    """Put a definition in force, as the next version of its topic."""
    newest = connection.execute(
        select(func.max(lineage.c.version)).where(lineage.c.topic == definition.topic)
    ).scalar()
    connection.execute(
        update(lineage)
        .where(lineage.c.topic == definition.topic, lineage.c.current)
        .values(current=False, updated_at=at)
    )
    connection.execute(
        insert(lineage).values(
            topic=definition.topic,
            version=(newest or 0) + 1,
            definition=definition.as_dict(),
            user=user,
            current=True,
            created_at=at,
            updated_at=at,
        )
    )


def _applied(row: RowMapping) -> Applied:
    # The row changes once more when it is superseded; people ask when it was applied.
    return Applied(
        Definition.from_dict(row["definition"]), row["version"], row["user"], row["created_at"]
    )
