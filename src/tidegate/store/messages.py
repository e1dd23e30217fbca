"""The embedded bus's table: messages under way, as rows; and those that nobody could take.

What is sent together to the manager shares a row: of the dozen messages that tell of an execution,
each one's own row would cost the store more than the execution's position does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
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
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.messages import Channel, sendable
from tidegate.ports.store import Delivery, OutgoingMessage, Rejection
from tidegate.store.backends import CHANNEL, Notices, among, hold, insert_into
from tidegate.store.schema import messages, rejected_messages, rejected_totals
from tidegate.store.writer import Reader, Row, Statement, Writer

MOST_IN_A_ROW = 100
_LINE = b"\n"
_COLUMNS = messages.c
_CHANNELS = {one.value: one for one in Channel}


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

    def put(self, outgoing: Sequence[OutgoingMessage], at: int) -> Future[None]:
        rows = rows_of(outgoing, at)
        return self._writer.submit(lambda connection: post(connection, rows))

    def take(
        self,
        channels: Sequence[Channel],
        keys: Sequence[str] | None,
        limit: int,
        known: Collection[int] = (),
    ) -> Sequence[Delivery]:
        wanted: dict[str, Any] = {
            "topics": [one.value for one in channels],
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

    def listen(self, wake: Callable[[], None]) -> Notices | None:
        return None if self._listening is None else Notices(self._listening, wake)


def rows_of(outgoing: Sequence[OutgoingMessage], at: int) -> Sequence[Row]:
    """Lay messages into rows, together where they go to the same reader."""
    together: list[list[OutgoingMessage]] = []
    shared: dict[Channel, list[OutgoingMessage]] = {}
    for message in outgoing:
        # Commands are told apart by their key, and what has lines already stays by itself.
        joins = message.channel is not Channel.CONTROL and _LINE not in message.body
        beside = shared.pop(message.channel, None)
        if beside is None or not joins or len(beside) == MOST_IN_A_ROW:
            beside = [message]
            together.append(beside)
        else:
            beside.append(message)
        if joins:
            shared[message.channel] = beside
    return [_row_of(some, at) for some in together]


def _row_of(outgoing: Sequence[OutgoingMessage], at: int) -> Row:
    first = outgoing[0]
    return {
        "topic": first.channel,
        "key": first.key,
        "body": _LINE.join(message.body for message in outgoing),
        "several": len(outgoing),
        "created_at": at,
    }


def post(connection: Connection, rows: Sequence[Row]) -> None:
    """Put messages into the table, and tell those who listen with the commit."""
    _PUT.run_many(connection, rows)
    if rows and connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY)


def _deliveries(id: int, topic: str, body: bytes, several: int) -> Iterable[Delivery]:
    if several == 1:
        return (Delivery(_CHANNELS[topic], bytes(body), str(id)),)
    lines = enumerate(bytes(body).split(_LINE))
    return (Delivery(_CHANNELS[topic], line, f"{id}.{number}") for number, line in lines)


MOST_ROWS = 10_000
MOST_BYTES = 10_000
"""So much of a body is kept: enough to see who wrote it."""
_COLUMNS_REJECTED = rejected_messages.c
_KEEP = insert(rejected_messages)
_TRIM = delete(rejected_messages).where(
    _COLUMNS_REJECTED.id <= select(func.max(_COLUMNS_REJECTED.id)).scalar_subquery() - MOST_ROWS
)
_KEPT = Statement(
    lambda dialect: select(
        _COLUMNS_REJECTED.topic, _COLUMNS_REJECTED.where, _COLUMNS_REJECTED.body
    ).where(
        among(dialect, _COLUMNS_REJECTED.topic, "topics"),
        among(dialect, _COLUMNS_REJECTED.where, "places"),
    )
)


class SqlRejected:
    """Implements `ports.Rejected`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def keep(self, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
        if refused:
            self._writer.write(lambda connection: _keep(connection, refused, at))

    def totals(self) -> Mapping[Channel, int]:
        rows = self._reader.rows(select(rejected_totals).order_by(rejected_totals.c.topic))
        return {Channel(row["topic"]): row["messages"] for row in rows}

    def counts(self) -> Mapping[Channel, Mapping[str, int]]:
        rows = self._reader.rows(
            select(_COLUMNS_REJECTED.topic, _COLUMNS_REJECTED.reason, func.count().label("rows"))
            .group_by(_COLUMNS_REJECTED.topic, _COLUMNS_REJECTED.reason)
            .order_by(_COLUMNS_REJECTED.topic, _COLUMNS_REJECTED.reason)
        )
        counted: dict[Channel, dict[str, int]] = {}
        for row in rows:
            counted.setdefault(Channel(row["topic"]), {})[row["reason"]] = row["rows"]
        return counted

    def list(self, *, limit: int | None = None) -> Sequence[Rejection]:
        rows = self._reader.rows(
            select(rejected_messages).order_by(_COLUMNS_REJECTED.id.desc()).limit(limit)
        )
        return [
            Rejection(
                Channel(row["topic"]),
                row["where"],
                row["reason"],
                bytes(row["body"]),
                row["created_at"],
            )
            for row in rows
        ]


def _keep(connection: Connection, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
    # Every worker reads what is on ems.control, and a message may come to two managers: whoever is
    # first counts it.
    hold(connection, "rejected messages")
    rows = [
        {
            "topic": delivery.channel,
            "where": delivery.where,
            "reason": sendable(reason),
            "body": delivery.body[:MOST_BYTES],
            "created_at": at,
        }
        for delivery, reason in refused
    ]
    known = _known(connection, rows)
    fresh = [row for row in rows if _identity(row) not in known]
    if not fresh:
        return
    connection.execute(_KEEP, fresh[-MOST_ROWS:])
    connection.execute(_TRIM)
    counted = Counter(row["topic"] for row in fresh)
    connection.execute(
        _count(connection.dialect.name),
        [
            {"topic": topic, "messages": count, "created_at": at, "updated_at": at}
            for topic, count in sorted(counted.items())
        ],
    )


def _known(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    sought = {
        "topics": [one.value for one in Channel],
        "places": [row["where"] for row in rows],
    }
    return {_identity(row) for row in _KEPT.rows(connection, sought)}


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    # With the body: a topic that was made anew counts its places from zero again.
    return str(row["topic"]), row["where"], bytes(row["body"])


@cache
def _count(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = insert_into(dialect, rejected_totals)
    added = rejected_totals.c.messages + statement.excluded.messages
    return statement.on_conflict_do_update(
        index_elements=[rejected_totals.c.topic],
        set_={"messages": added, "updated_at": statement.excluded.updated_at},
    )
