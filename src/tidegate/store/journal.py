"""What committed loads leave behind: `blocks` and `etl_log`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, delete, insert, select

from tidegate.model.duration import DAY
from tidegate.model.execution import Block, Measures
from tidegate.model.position import Position
from tidegate.ports import BlockRow, Commit, LogRow
from tidegate.store.reader import Reader
from tidegate.store.schema import blocks, etl_log
from tidegate.store.statement import Statement

LOG_KEPT = 90 * DAY
TRIM_EVERY = 100
"""Blocks of a topic between two looks for log rows that are too old."""

_RECORD_BLOCK = Statement(insert(blocks))
_RECORD_LOAD = Statement(insert(etl_log))


class SqlJournal:
    """Implements `ports.Journal`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def etl_log(self, topic: str | None = None, *, limit: int | None = None) -> Sequence[LogRow]:
        statement = select(etl_log).order_by(etl_log.c.ts.desc(), etl_log.c.id.desc()).limit(limit)
        if topic is not None:
            statement = statement.where(etl_log.c.topic == topic)
        return [_log_row(row) for row in self._reader.rows(statement)]

    def blocks(self, topic: str) -> Sequence[BlockRow]:
        rows = self._reader.rows(
            select(blocks)
            .where(blocks.c.topic == topic)
            .order_by(blocks.c.seq, blocks.c.created_at, blocks.c.execution_id)
        )
        return [_block_row(row) for row in rows]


def record(connection: Connection, commit: Commit) -> None:
    """Keep what a commit loaded, in its transaction."""
    _record_block(connection, commit)
    if commit.outcome.measures is not None:
        _record_load(connection, commit, commit.outcome.measures)
    if commit.block.seq % TRIM_EVERY == 0:
        trim(connection, commit.execution.topic, older_than=commit.at - LOG_KEPT)


def trim(connection: Connection, topic: str, *, older_than: int) -> None:
    """Delete a topic's log rows from before a time."""
    connection.execute(delete(etl_log).where(etl_log.c.topic == topic, etl_log.c.ts < older_than))


def _record_block(connection: Connection, commit: Commit) -> None:
    block = commit.block
    _RECORD_BLOCK.run(
        connection,
        {
            "topic": commit.execution.topic,
            "seq": block.seq,
            "execution_id": commit.execution.id,
            "last_pos": block.last.pos,
            "last_id": block.last.id,
            "next_pos": block.next.pos,
            "next_id": block.next.id,
            "rows": block.rows,
            "full": block.full,
            "complete_to": block.complete_to,
            "definition_version": block.definition_version,
            "versions": dict(block.versions),
            # The base table is the first that was listed.
            "base_version": next(iter(block.versions.values()), None),
            "committed_version": commit.outcome.committed_version,
            "created_at": commit.at,
            "updated_at": commit.at,
        },
    )


def _record_load(connection: Connection, commit: Commit, measures: Measures) -> None:
    row = LogRow(commit.execution.topic, commit.at, measures, commit.execution.id)
    _RECORD_LOAD.run(
        connection,
        {
            "topic": row.topic,
            "ts": row.ts,
            "rows": measures.rows,
            "max_id": measures.max_id,
            "min_ts": measures.min_ts,
            "max_ts": measures.max_ts,
            "max_lag": row.max_lag,
            "nulls": None if measures.nulls is None else dict(measures.nulls),
            "figures": None if measures.figures is None else dict(measures.figures),
            "query_id": measures.query_id,
            "execution_id": row.execution_id,
            "created_at": commit.at,
            "updated_at": commit.at,
        },
    )


def _log_row(row: RowMapping) -> LogRow:
    measures = Measures(
        query_id=row["query_id"],
        rows=row["rows"],
        max_id=row["max_id"],
        min_ts=row["min_ts"],
        max_ts=row["max_ts"],
        nulls=row["nulls"],
        figures=row["figures"],
    )
    return LogRow(row["topic"], row["ts"], measures, row["execution_id"])


def _block_row(row: RowMapping) -> BlockRow:
    block = Block(
        last=Position(row["last_pos"], row["last_id"]),
        next=Position(row["next_pos"], row["next_id"]),
        rows=row["rows"],
        seq=row["seq"],
        full=row["full"],
        complete_to=row["complete_to"],
        definition_version=row["definition_version"],
        versions=row["versions"],
    )
    return BlockRow(
        topic=row["topic"],
        block=block,
        base_version=row["base_version"],
        committed_version=row["committed_version"],
        execution_id=row["execution_id"],
        at=row["created_at"],
    )
