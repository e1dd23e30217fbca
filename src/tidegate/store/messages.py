"""The embedded bus's table: messages under way, as rows.

What is sent together to the manager shares a row: of the dozen messages that tell of an execution,
each one's own row would cost the store more than the execution's position does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
)

from tidegate.model.messages import Topic
from tidegate.ports import Delivery, Parcel
from tidegate.store.dialect import among
from tidegate.store.notices import CHANNEL, Notices
from tidegate.store.reader import Reader
from tidegate.store.schema import messages
from tidegate.store.statement import Row, Statement
from tidegate.store.writer import Writer

MOST_IN_A_ROW = 100
_LINE = b"\n"

_COLUMNS = messages.c
_TOPICS = {topic.value: topic for topic in Topic}


def _taking(dialect: str) -> Select[Any]:
    return (
        select(_COLUMNS.id, _COLUMNS.topic, _COLUMNS.body, _COLUMNS.several)
        .where(among(dialect, _COLUMNS.topic, "topics"))
        .order_by(_COLUMNS.id)
        .limit(bindparam("most", type_=BigInteger))
    )


_TAKE = Statement(_taking)
_TAKE_OF = Statement(lambda dialect: _taking(dialect).where(among(dialect, _COLUMNS.key, "keys")))
_PUT = Statement(insert(messages))
_NOTIFY = select(func.pg_notify(CHANNEL, ""))
_DELETE = Statement(lambda dialect: delete(messages).where(among(dialect, _COLUMNS.id, "ids")))


class SqlMessages:
    """Implements `ports.Messages`."""

    def __init__(self, reader: Reader, writer: Writer, listening: Engine | None) -> None:
        self._reader, self._writer, self._listening = reader, writer, listening

    def put(self, parcels: Sequence[Parcel], at: int) -> Future[None]:
        rows = rows_of(parcels, at)
        return self._writer.submit(lambda connection: post(connection, rows))

    def take(
        self,
        topics: Sequence[Topic],
        keys: Sequence[str] | None,
        limit: int,
        known: Collection[int] = (),
    ) -> Sequence[Delivery]:
        wanted: dict[str, Any] = {
            "topics": [one.value for one in topics],
            "most": limit + len(known),
        }
        if keys is None:
            rows = self._reader.rows_of(_TAKE, wanted)
        else:
            rows = self._reader.rows_of(_TAKE_OF, {**wanted, "keys": list(keys)})
        fresh = (row for row in rows if row["id"] not in known)
        return [delivery for row in fresh for delivery in _deliveries(**row)]

    def delete(self, ids: Sequence[int]) -> Future[None]:
        return self._writer.submit(lambda connection: _DELETE.run(connection, {"ids": list(ids)}))

    def trim(self, before: int) -> Future[None]:
        old = delete(messages).where(_COLUMNS.created_at < before)

        def forget(connection: Connection) -> None:
            connection.execute(old)

        return self._writer.submit(forget)

    def listen(self, ring: Callable[[], None]) -> Notices | None:
        return None if self._listening is None else Notices(self._listening, ring)


def rows_of(parcels: Sequence[Parcel], at: int) -> Sequence[Row]:
    """Lay messages into rows, together where they go to the same reader."""
    together: list[list[Parcel]] = []
    shared: dict[Topic, list[Parcel]] = {}
    for parcel in parcels:
        # Commands are told apart by their key, and what has lines already stays by itself.
        joins = parcel.topic is not Topic.CONTROL and _LINE not in parcel.body
        beside = shared.pop(parcel.topic, None)
        if beside is None or not joins or len(beside) == MOST_IN_A_ROW:
            beside = [parcel]
            together.append(beside)
        else:
            beside.append(parcel)
        if joins:
            shared[parcel.topic] = beside
    return [_row_of(some, at) for some in together]


def _row_of(parcels: Sequence[Parcel], at: int) -> Row:
    first = parcels[0]
    return {
        "topic": first.topic,
        "key": first.key,
        "body": _LINE.join(parcel.body for parcel in parcels),
        "several": len(parcels),
        "created_at": at,
    }


def post(connection: Connection, rows: Sequence[Row]) -> None:
    """Put messages into the table, and tell those who listen with the commit."""
    _PUT.run_many(connection, rows)
    if rows and connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY)


def _deliveries(id: int, topic: str, body: bytes, several: int) -> Iterable[Delivery]:
    if several == 1:
        return (Delivery(_TOPICS[topic], bytes(body), str(id)),)
    lines = enumerate(bytes(body).split(_LINE))
    return (Delivery(_TOPICS[topic], line, f"{id}.{number}") for number, line in lines)
