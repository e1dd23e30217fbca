"""The store's tables. A change here needs a migration and a new REVISION."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator

REVISION = "0009"
"""The newest migration. Kept here so that opening a store of today needs no Alembic."""
VERSION_TABLE = "tidegate_schema"


class JsonText(TypeDecorator[Any]):
    """JSON kept as text: the order of keys survives, on every back end."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else orjson.loads(value)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, JsonText, nullable=nullable)


def _stamps() -> tuple[Column[int], Column[int]]:
    return _number("created_at"), _number("updated_at")


def _counted() -> Column[int]:
    # SQLite counts up by itself only for a column called INTEGER.
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


metadata = MetaData()

offsets = Table(
    "offsets",
    metadata,
    Column("topic", Text, primary_key=True),
    # What the flow writes to: one execution at a time.
    _text("lane"),
    _number("last_pos"),
    _number("last_id"),
    # Of a flow that counts in another way than (pos, id); NULL for a table's topic.
    _json("last_marker", nullable=True),
    _json("next_marker", nullable=True),
    _number("rows"),
    _number("next_pos", nullable=True),
    _number("next_id", nullable=True),
    _number("run", nullable=True),
    _text("processor"),
    _text("state"),
    _text("hostid"),
    _text("execution_id", nullable=True),
    _number("claimed_at", nullable=True),
    _number("seq"),
    _number("complete_to"),
    _number("failures"),
    _text("reason"),
    _number("away_since", nullable=True),
    Column("wait", BigInteger, nullable=False, server_default="0"),
    Column("full", Boolean, nullable=False),
    _json("versions"),
    _number("definition_version", nullable=True),
    _json("columns", nullable=True),
    _text("stale", nullable=True),
    _number("vacuumed_at", nullable=True),
    # The declared block, all NULL while there is none. Its `next` stands above; its start is kept
    # as declared, not taken from `last`.
    _number("block_last_pos", nullable=True),
    _number("block_last_id", nullable=True),
    _number("block_rows", nullable=True),
    _number("block_seq", nullable=True),
    Column("block_full", Boolean, nullable=True),
    _number("block_complete_to", nullable=True),
    _number("block_definition_version", nullable=True),
    _json("block_versions", nullable=True),
    _json("block_last_marker", nullable=True),
    *_stamps(),
    Index("offsets_lane", "lane"),
)

blocks = Table(
    "blocks",
    metadata,
    # A position that was set back by hand may give a number out again: the execution tells apart.
    Column("topic", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("execution_id", Text, primary_key=True),
    _number("last_pos"),
    _number("last_id"),
    _number("next_pos"),
    _number("next_id"),
    _number("rows"),
    Column("full", Boolean, nullable=False),
    _number("complete_to"),
    _number("definition_version"),
    _json("versions"),
    _number("base_version", nullable=True),
    _number("committed_version", nullable=True),
    _json("last_marker", nullable=True),
    _json("next_marker", nullable=True),
    *_stamps(),
)

lineage = Table(
    "lineage",
    metadata,
    Column("topic", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False, server_default="table"),
    _json("definition"),
    _text("user"),
    Column("current", Boolean, nullable=False),
    _number("removed_at", nullable=True),
    _text("removed_by", nullable=True),
    *_stamps(),
)
Index(
    "lineage_current",
    lineage.c.topic,
    unique=True,
    sqlite_where=text("current"),
    postgresql_where=text("current"),
)

etl_executions = Table(
    "etl_executions",
    metadata,
    Column("id", Text, primary_key=True),
    _text("flow_kind"),
    _text("flow_id"),
    _text("topic"),
    Column("lane", Text, nullable=False, server_default=""),
    Column("operation", Text, nullable=False, server_default="build"),
    _number("attempt"),
    _text("retry_of", nullable=True),
    _text("etl_worker"),
    _text("state"),
    _number("assigned_at"),
    _number("accepted_at", nullable=True),
    _number("started_at", nullable=True),
    _number("finished_at", nullable=True),
    _number("cancel_requested_at", nullable=True),
    _text("comment"),
    _number("rows", nullable=True),
    Column("failed", BigInteger, nullable=False, server_default="0"),
    _json("configuration"),
    _number("term", nullable=True),
    _json("tags", nullable=True),
    _number("started_location", nullable=True),
    *_stamps(),
    Index("etl_executions_flow", "flow_id", "assigned_at"),
)
# Every end sets finished_at. The condition is on that column, not on the state, because SQLite
# uses a partial index only for queries that repeat its condition word for word.
Index(
    "etl_executions_open",
    etl_executions.c.state,
    etl_executions.c.assigned_at,
    sqlite_where=text("finished_at IS NULL"),
    postgresql_where=text("finished_at IS NULL"),
)

etl_log = Table(
    "etl_log",
    metadata,
    _counted(),
    _text("topic"),
    _number("ts"),
    _number("rows"),
    _number("max_id", nullable=True),
    _number("min_ts", nullable=True),
    _number("max_ts", nullable=True),
    Column("max_lag", Double, nullable=True),
    _json("nulls", nullable=True),
    _json("figures", nullable=True),
    _text("query_id"),
    _text("execution_id"),
    *_stamps(),
    Index("etl_log_topic", "topic", "ts"),
)

failed_rows = Table(
    "failed_rows",
    metadata,
    Column("topic", Text, primary_key=True),
    Column("entity_id", Text, primary_key=True),
    _number("pos"),
    _number("id"),
    _number("hash"),
    Column("raised", Boolean, nullable=False),
    # NULL while a load has found it and its block is not committed.
    _text("state", nullable=True),
    _number("attempts"),
    _text("reason"),
    _json("entity"),
    # What it becomes with the commit of that block.
    _number("pending_seq", nullable=True),
    _json("pending", nullable=True),
    *_stamps(),
    Index("failed_rows_state", "topic", "state", "attempts"),
)

datasets = Table(
    "datasets",
    metadata,
    Column("flow_id", Text, primary_key=True),
    _number("next_location"),
    *_stamps(),
)

dataset_entities = Table(
    "dataset_entities",
    metadata,
    Column("flow_id", Text, ForeignKey("datasets.flow_id"), primary_key=True),
    Column("location", BigInteger, primary_key=True, autoincrement=False),
    _text("entity_id"),
    _text("event_type", nullable=True),
    _number("at"),
    _json("entity"),
    *_stamps(),
    Index("dataset_entities_latest", "flow_id", "entity_id", "location"),
)

etl_instances = Table(
    "etl_instances",
    metadata,
    Column("instance_id", Text, primary_key=True),
    _text("name"),
    _text("host"),
    _number("pid", nullable=True),
    # The worker process that hosts it, under the name by which it holds mutexes.
    _text("process"),
    _json("kinds"),
    _json("tags"),
    _text("state"),
    _text("status"),
    Column("disabled", Boolean, nullable=False),
    # By the store's clock, at receipt: what the instance believes the time to be plays no part.
    _number("reported_at", nullable=True),
    _number("started_at"),
    _number("status_updated_at"),
    *_stamps(),
)

etl_phase_executions = Table(
    "etl_phase_executions",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("phase", Text, primary_key=True),
    Column("data_stream_name", Text, primary_key=True),
    Column("instance_id", Text, primary_key=True),
    _number("stream_started_at", nullable=True),
    _number("stream_finished_at", nullable=True),
    _number("stream_failed_at", nullable=True),
    _text("comment"),
    _number("total_in_messages", nullable=True),
    _number("total_out_messages", nullable=True),
    _number("total_failed_messages", nullable=True),
    *_stamps(),
)

leadership = Table(
    "leadership",
    metadata,
    # One row, made before the first election.
    Column("id", Integer, primary_key=True, autoincrement=False),
    _number("term"),
    _text("holder"),
    _number("expires_at"),
    _number("elected_at"),
    *_stamps(),
)

flow_controls = Table(
    "flow_controls",
    metadata,
    Column("flow_id", Text, primary_key=True),
    # What people want of a flow; nobody but people writes here.
    _number("paused_at", nullable=True),
    _text("paused_by"),
    _text("paused_why"),
    _number("run_asked_at", nullable=True),
    *_stamps(),
)

messages = Table(
    "messages",
    metadata,
    _counted(),
    _text("topic"),
    _text("key"),
    Column("body", LargeBinary, nullable=False),
    # How many there are in the body, one a line.
    Column("several", BigInteger, nullable=False, server_default="1"),
    _number("created_at"),
    Index("messages_key", "topic", "key"),
    # An id that came back could be taken for a message that is already handled.
    sqlite_autoincrement=True,
)

rejected_messages = Table(
    "rejected_messages",
    metadata,
    _counted(),
    _text("topic"),
    _text("where"),
    _text("reason"),
    Column("body", LargeBinary, nullable=False),
    _number("created_at"),
    Index("rejected_messages_where", "topic", "where"),
    sqlite_autoincrement=True,
)

rejected_totals = Table(
    "rejected_totals",
    metadata,
    # How many there were, of which `rejected_messages` keeps the newest.
    Column("topic", Text, primary_key=True),
    _number("messages"),
    *_stamps(),
)
