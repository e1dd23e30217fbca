"""Streams of executions: one row a phase, stream and instance, filled as it is told."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.streams import Stream
from tidegate.store.dialect import insert_into
from tidegate.store.reader import Reader
from tidegate.store.schema import etl_phase_executions
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

_COLUMNS = etl_phase_executions.c
_KEY = ("execution_id", "phase", "data_stream_name", "instance_id")
_TIMES = ("stream_started_at", "stream_finished_at", "stream_failed_at")
_COUNTS = ("total_in_messages", "total_out_messages", "total_failed_messages")


class SqlPhases:
    """Implements `ports.Phases`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def tell(self, streams: Sequence[Stream], at: int) -> None:
        if streams:
            self._writer.write(lambda connection: tell(connection, streams, at))

    def of(self, execution_id: str) -> Sequence[Stream]:
        rows = self._reader.rows(
            select(etl_phase_executions)
            .where(_COLUMNS.execution_id == execution_id)
            .order_by(_COLUMNS.stream_started_at, _COLUMNS.phase, _COLUMNS.data_stream_name)
        )
        return [_stream_of(row) for row in rows]


def tell(connection: Connection, streams: Sequence[Stream], at: int) -> None:
    """Merge what was told into the rows: times are set once, counts by the latest that has them."""
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
