"""Messages that nobody could take: the newest are kept, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, func, insert, select

from tidegate.model.fields import sendable
from tidegate.model.messages import Topic
from tidegate.ports import Delivery, Rejection
from tidegate.store.reader import Reader
from tidegate.store.schema import rejected_messages
from tidegate.store.writer import Writer

MOST_ROWS = 10_000
MOST_BYTES = 10_000
"""So much of a body is kept: enough to see who wrote it."""

_COLUMNS = rejected_messages.c
_KEEP = insert(rejected_messages)
_TRIM = delete(rejected_messages).where(
    _COLUMNS.id <= select(func.max(_COLUMNS.id)).scalar_subquery() - MOST_ROWS
)


class SqlRejected:
    """Implements `ports.Rejected`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def keep(self, refused: Sequence[tuple[Delivery, str]], at: int) -> None:
        if refused:
            self._writer.write(lambda connection: _keep(connection, refused, at))

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
    connection.execute(
        _KEEP,
        [
            {
                "topic": delivery.topic,
                "where": delivery.where,
                "reason": sendable(reason),
                "body": delivery.body[:MOST_BYTES],
                "created_at": at,
            }
            for delivery, reason in refused[-MOST_ROWS:]
        ],
    )
    connection.execute(_TRIM)
