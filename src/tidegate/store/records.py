"""What a commit leaves beside the position: blocks, logs, streams, and the records of kinds.

A record is an update with its precondition, as data: one function for each sort, in the commit's
own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from sqlalchemy import Connection, RowMapping, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.execution import Execution, Stream
from tidegate.model.flow import Definition
from tidegate.model.position import START, Block, Offset
from tidegate.model.records import (
    Columns,
    MadeStale,
    Measures,
    Mended,
    Record,
    TookPlace,
    Vacuumed,
)
from tidegate.ports.store import BlockRow, Commit, LogRow, Shadow
from tidegate.store.backends import hold, insert_into
from tidegate.store.datasets import take_over
from tidegate.store.definitions import ROWS, DefinitionReader, add_versions, remove
from tidegate.store.positions import (
    bound_of,
    bounds,
    change,
    enter,
    mark_stale,
    mend,
    offset_of,
)
from tidegate.store.schema import (
    blocks,
    dataset_entities,
    datasets,
    etl_log,
    etl_phase_executions,
    failed_rows,
    lineage,
    offsets,
)
from tidegate.store.writer import Reader, Statement, Writer

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


def apply(connection: Connection, execution: Execution, record: Record, at: int) -> int:
    """Make a record true; give how many entities it says have failed."""
    match record:
        case Measures():
            _record_load(connection, execution, record, at)
        case Columns():
            change(connection, execution.topic, {"columns": dict(record.columns)}, at)
        case Vacuumed():
            change(connection, execution.topic, {"vacuumed_at": at}, at)
        case Mended():
            mend(connection, execution.topic, record.stale, at)
        case MadeStale():
            mark_stale(connection, record.reasons, at)
        case TookPlace():
            remove(connection, [record.shadow], _US, at)
            return take_over(connection, execution, record.shadow, at)
        case _:
            assert_never(record)
    return 0


def keep_block(connection: Connection, commit: Commit, block: Block[Any]) -> None:
    """Keep what a commit moved its flow over."""
    _RECORD_BLOCK.run(
        connection,
        {
            "topic": commit.execution.topic,
            "seq": block.seq,
            "execution_id": commit.execution.id,
            **bounds("last", block.last),
            **bounds("next", block.next),
            "rows": block.rows,
            "full": block.full,
            "complete_to": block.complete_to,
            "definition_version": block.definition_version,
            "versions": dict(block.versions),
            # The base table is the first that was listed.
            "base_version": next(iter(block.versions.values()), None),
            "committed_version": commit.outcome.version,
            "created_at": commit.at,
            "updated_at": commit.at,
        },
    )


def _record_load(connection: Connection, execution: Execution, measures: Measures, at: int) -> None:
    row = LogRow(execution.topic, at, measures, execution.id)
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
            "created_at": at,
            "updated_at": at,
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
        last=bound_of(row, "last"),
        next=bound_of(row, "next"),
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


_COLUMNS = etl_phase_executions.c
_KEY = ("execution_id", "phase", "data_stream_name", "instance_id")
_TIMES = ("stream_started_at", "stream_finished_at", "stream_failed_at")
_COUNTS = ("total_in_messages", "total_out_messages", "total_failed_messages")


class SqlPhases:
    """Implements `ports.Phases`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def record(self, streams: Sequence[Stream], at: int) -> None:
        if streams:
            self._writer.write(lambda connection: record_streams(connection, streams, at))

    def of(self, execution_id: str) -> Sequence[Stream]:
        rows = self._reader.rows(
            select(etl_phase_executions)
            .where(_COLUMNS.execution_id == execution_id)
            .order_by(_COLUMNS.stream_started_at, _COLUMNS.phase, _COLUMNS.data_stream_name)
        )
        return [_stream_of(row) for row in rows]


def record_streams(connection: Connection, streams: Sequence[Stream], at: int) -> None:
    """Merge what is known into the rows: times are set once, counts by the latest that has them."""
    rows = [
        {
            "execution_id": stream.execution_id,
            "phase": stream.phase,
            "data_stream_name": stream.name,
            "instance_id": stream.instance_id,
            "stream_started_at": stream.started_at,
            "stream_finished_at": stream.finished_at,
            "stream_failed_at": stream.failed_at,
            "comment": stream.comment,
            "total_in_messages": stream.total_in,
            "total_out_messages": stream.total_out,
            "total_failed_messages": stream.total_failed,
            "created_at": at,
            "updated_at": at,
        }
        for stream in streams
    ]
    _MERGE.run_many(connection, rows)


def _merged(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = insert_into(dialect, etl_phase_executions)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[_COLUMNS[name] for name in _KEY],
        set_={
            **{name: func.coalesce(_COLUMNS[name], new[name]) for name in _TIMES},
            **{name: func.coalesce(new[name], _COLUMNS[name]) for name in _COUNTS},
            "comment": func.coalesce(func.nullif(_COLUMNS.comment, ""), new.comment),
            "updated_at": new.updated_at,
        },
    )


_MERGE = Statement(_merged)


def _stream_of(row: RowMapping) -> Stream:
    return Stream(
        execution_id=row["execution_id"],
        phase=row["phase"],
        name=row["data_stream_name"],
        instance_id=row["instance_id"],
        started_at=row["stream_started_at"],
        finished_at=row["stream_finished_at"],
        failed_at=row["stream_failed_at"],
        comment=row["comment"],
        total_in=row["total_in_messages"],
        total_out=row["total_out_messages"],
        total_failed=row["total_failed_messages"],
    )


_US = "tidegate"
_KEPT_BY_TOPIC = (failed_rows, blocks, etl_log, offsets, lineage)
# Of the many definitions only these are looked at, again and again.
_SHADOWS = ROWS.add_columns(lineage.c.definition).where(
    lineage.c.topic.contains("__rebuild_", autoescape=True)
)


class SqlRebuilds:
    """Implements `ports.Rebuilds`."""

    def __init__(self, reader: Reader, writer: Writer, definitions: DefinitionReader) -> None:
        self._reader, self._writer, self._definitions = reader, writer, definitions

    def of(self, topic: str) -> Shadow | None:
        for row in self._reader.rows(_SHADOWS.where(lineage.c.current)):
            if row["definition"].get("rebuilds") == topic:
                applied = self._definitions.applied(row)
                return Shadow(row["topic"], applied.definition, self._offset(row["topic"]))
        return None

    def _offset(self, shadow: str) -> Offset:
        row = self._reader.first(select(offsets).where(offsets.c.topic == shadow))
        return Offset(shadow, START, shadow) if row is None else offset_of(row)

    def begin(self, definition: Definition, at: int) -> None:
        self._writer.write(lambda connection: _begin(connection, definition, at))

    def abandon(self, shadow: str, at: int) -> None:
        self._writer.write(lambda connection: remove(connection, [shadow], _US, at))

    def abandoned(self) -> Sequence[str]:
        rows = self._reader.rows(_SHADOWS.where(lineage.c.current.is_(False)))
        return sorted({row["topic"] for row in rows if row["definition"].get("rebuilds")})

    def forget(self, shadow: str) -> None:
        self._writer.write(lambda connection: _forget(connection, shadow))


def _begin(connection: Connection, definition: Definition, at: int) -> None:
    # Two that begin at once would each build a table of their own.
    hold(connection, "lineage")
    for row in connection.execute(_SHADOWS.where(lineage.c.current)).mappings():
        if row["definition"].get("rebuilds") == definition.rebuilds:
            return
    flow = definition.flow
    enter(connection, flow.id, flow.lane, at)
    stale = select(offsets.c.stale).where(offsets.c.topic == definition.rebuilds)
    change(connection, flow.id, {"stale": connection.execute(stale).scalar()}, at)
    add_versions(connection, [definition], _US, at)


def _forget(connection: Connection, shadow: str) -> None:
    for table in _KEPT_BY_TOPIC:
        connection.execute(delete(table).where(table.c.topic == shadow))
    for table in (dataset_entities, datasets):
        connection.execute(delete(table).where(table.c.flow_id == shadow))
