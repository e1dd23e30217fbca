"""Positions and mutexes as people and plans see them: read, set, seen, unlocked, resumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, literal, select, tuple_

from tidegate.errors import MutexError, UnknownName, WrongUse
from tidegate.model.execution import Offset, OffsetState
from tidegate.model.facts import Look
from tidegate.model.landed import after_look
from tidegate.model.position import rfc3339
from tidegate.store.dialect import among, insert_into
from tidegate.store.execution_rows import lose
from tidegate.store.offset_rows import (
    FREE,
    change,
    columns_of,
    destination_of,
    offset_of,
    release,
    resting,
    stamp,
)
from tidegate.store.reader import Reader
from tidegate.store.schema import offsets
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

# Built once: a leader and its workers ask again and again.
_ALL = select(offsets).order_by(offsets.c.topic)
_ONE = select(offsets).where(offsets.c.topic == bindparam("on_topic"))
_SOME = Statement(lambda dialect: select(offsets).where(among(dialect, offsets.c.topic, "ids")))
_LANE = select(offsets).where(offsets.c.destination == bindparam("on_destination"))
# What people may change with SQL of their own is looked at, too: that leaves no stamp.
_STAMPS = select(
    offsets.c.topic,
    offsets.c.updated_at,
    offsets.c.hostid,
    offsets.c.state,
    offsets.c.last_pos,
    offsets.c.last_id,
)


class SqlOffsets:
    """Implements `ports.Offsets`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def all(self) -> Mapping[str, Offset]:
        return {row["topic"]: offset_of(row) for row in self._reader.rows(_ALL)}

    def stamps(self) -> Mapping[str, object]:
        return {row[0]: row for row in self._reader.plain(_STAMPS)}

    def some(self, topics: Collection[str]) -> Mapping[str, Offset]:
        rows = self._reader.rows_of(_SOME, {"ids": list(topics)})
        return {row["topic"]: offset_of(row) for row in rows}

    def lane(self, topic: str) -> Sequence[Offset]:
        rows = self._reader.rows(_LANE, {"on_destination": destination_of(topic)})
        return [offset_of(row) for row in rows]

    def get(self, topic: str) -> Offset | None:
        row = self._reader.first(_ONE, {"on_topic": topic})
        return None if row is None else offset_of(row)

    def put(self, offset: Offset, at: int) -> None:
        self._writer.write(lambda connection: _put(connection, offset, at))

    def see(self, looks: Sequence[Look], at: int) -> None:
        if looks:
            self._writer.write(lambda connection: _see(connection, looks, at))

    def unlock(self, topic: str, at: int) -> str:
        return self._writer.write(lambda connection: _unlock(connection, topic, at))

    def resume(self, topic: str, at: int) -> None:
        self._writer.write(lambda connection: _resume(connection, topic, at))


def _put(connection: Connection, offset: Offset, at: int) -> None:
    columns = {**columns_of(offset), **FREE}
    written = connection.execute(
        insert_into(connection.dialect.name, offsets)
        .values(topic=offset.topic, created_at=at, updated_at=at, **columns)
        .on_conflict_do_update(
            index_elements=[offsets.c.topic],
            set_={**columns, "updated_at": stamp(literal(at, BigInteger))},
            where=offsets.c.hostid == "",
        )
        .returning(offsets.c.topic)
    ).first()
    if written is None:
        held = _locked(connection, offset.topic)
        raise MutexError(offset.topic, held.hostid, rfc3339(held.claimed_at or 0))


def _see(connection: Connection, looks: Sequence[Look], at: int) -> None:
    tables = [look.table for look in looks]
    known = {row["topic"]: offset_of(row) for row in _SOME.rows(connection, {"ids": tables})}
    # In one order, so that two processes that look at the same tables wait and do not clash.
    changed = [
        {
            "topic": seen.topic,
            "created_at": at,
            "updated_at": at,
            **columns_of(replace(seen, run=at)),
        }
        for look in sorted(looks, key=lambda look: look.table)
        if (seen := after_look(known.get(look.table), look)) is not None
    ]
    if not changed:
        return
    statement = insert_into(connection.dialect.name, offsets)
    new, columns = statement.excluded, offsets.c
    moved = ("last_pos", "last_id", "run", "processor", "state", "versions")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[columns.topic],
            set_={**{name: new[name] for name in moved}, "updated_at": stamp(new.updated_at)},
            where=tuple_(columns.last_pos, columns.last_id) <= tuple_(new.last_pos, new.last_id),
        ),
        changed,
    )


def _unlock(connection: Connection, topic: str, at: int) -> str:
    held = _locked(connection, topic)
    if not held.hostid:
        return ""
    release(connection, topic, {"state": resting(held.seq).value}, at)
    if held.execution_id is not None:
        by_hand = "unlocked by hand"
        lose(connection, held.execution_id, by_hand, f"lost: {by_hand}", at)
    return held.hostid


def _resume(connection: Connection, topic: str, at: int) -> None:
    stopped = _locked(connection, topic)
    if stopped.state is not OffsetState.STOPPED:
        raise WrongUse(f"{topic} is not stopped, its state is {stopped.state}: nothing to resume")
    changes: dict[str, Any] = {
        "state": resting(stopped.seq).value,
        # An open block stays one that failed: a mended definition may finish it.
        "failures": 1 if stopped.block else 0,
        "reason": "",
    }
    change(connection, topic, changes, at)


def _locked(connection: Connection, topic: str) -> Offset:
    row = (
        connection.execute(select(offsets).where(offsets.c.topic == topic).with_for_update())
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise UnknownName(
            f"the store knows no topic {topic}; check its spelling against lineage.yaml, or run it"
            " once"
        )
    return offset_of(row)
