"""Messages that nobody could take: all are counted, the newest kept, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.fields import sendable
from tidegate.model.messages import Topic
from tidegate.ports import Delivery, Rejection
from tidegate.store.dialect import among, hold, insert_into
from tidegate.store.reader import Reader
from tidegate.store.schema import rejected_messages, rejected_totals
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

MOST_ROWS = 10_000
MOST_BYTES = 10_000
"""So much of a body is kept: enough to see who wrote it."""

_COLUMNS = rejected_messages.c
_KEEP = insert(rejected_messages)
_TRIM = delete(rejected_messages).where(
    _COLUMNS.id <= select(func.max(_COLUMNS.id)).scalar_subquery() - MOST_ROWS
)
_KEPT = Statement(
    lambda dialect: select(_COLUMNS.topic, _COLUMNS.where, _COLUMNS.body).where(
        among(dialect, _COLUMNS.topic, "topics"), among(dialect, _COLUMNS.where, "places")
    )
)


class SqlRejected:
    """Implements `ports.Rejected`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def keep(self, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
        if refused:
            self._writer.write(lambda connection: _keep(connection, refused, at))

    def totals(self) -> Mapping[Topic, int]:
        rows = self._reader.rows(select(rejected_totals).order_by(rejected_totals.c.topic))
        return {Topic(row["topic"]): row["messages"] for row in rows}

    def counts(self) -> Mapping[Topic, Mapping[str, int]]:
        rows = self._reader.rows(
            select(_COLUMNS.topic, _COLUMNS.reason, func.count().label("rows"))
            .group_by(_COLUMNS.topic, _COLUMNS.reason)
            .order_by(_COLUMNS.topic, _COLUMNS.reason)
        )
        counted: dict[Topic, dict[str, int]] = {}
        for row in rows:
            counted.setdefault(Topic(row["topic"]), {})[row["reason"]] = row["rows"]
        return counted

    def list(self, *, limit: int | None = None) -> Sequence[Rejection]:
        rows = self._reader.rows(
            select(rejected_messages).order_by(_COLUMNS.id.desc()).limit(limit)
        )
        return [
            Rejection(
                Topic(row["topic"]),
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
            "topic": delivery.topic,
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
        "topics": [topic.value for topic in Topic],
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
