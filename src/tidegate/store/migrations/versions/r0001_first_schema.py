"""The first schema: lineage, offsets and blocks, executions, datasets, the ETL log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_lineage()
    _create_offsets()
    _create_blocks()
    _create_executions()
    _create_etl_log()
    _create_datasets()


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _flag(name: str, *, nullable: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=nullable)


def _stamps() -> tuple[sa.Column[int], sa.Column[int]]:
    return _number("created_at"), _number("updated_at")


def _create_lineage() -> None:
    op.create_table(
        "lineage",
        _text("topic"),
        _number("version"),
        _text("definition"),
        _text("user"),
        _flag("current"),
        _number("removed_at", nullable=True),
        _text("removed_by", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("topic", "version"),
    )
    op.create_index(
        "lineage_current",
        "lineage",
        ["topic"],
        unique=True,
        sqlite_where=sa.text("current"),
        postgresql_where=sa.text("current"),
    )


def _create_offsets() -> None:
    op.create_table(
        "offsets",
        _text("topic"),
        _text("destination"),
        _number("last_pos"),
        _number("last_id"),
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
        _flag("full"),
        _text("versions"),
        _number("definition_version", nullable=True),
        _number("block_last_pos", nullable=True),
        _number("block_last_id", nullable=True),
        _number("block_rows", nullable=True),
        _number("block_seq", nullable=True),
        _flag("block_full", nullable=True),
        _number("block_complete_to", nullable=True),
        _number("block_definition_version", nullable=True),
        _text("block_versions", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("topic"),
    )
    op.create_index("offsets_destination", "offsets", ["destination"])


def _create_blocks() -> None:
    op.create_table(
        "blocks",
        _text("topic"),
        _number("seq"),
        _text("execution_id"),
        _number("last_pos"),
        _number("last_id"),
        _number("next_pos"),
        _number("next_id"),
        _number("rows"),
        _flag("full"),
        _number("complete_to"),
        _number("definition_version"),
        _text("versions"),
        _number("base_version", nullable=True),
        _number("committed_version", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("topic", "seq", "execution_id"),
    )


def _create_executions() -> None:
    op.create_table(
        "etl_executions",
        _text("id"),
        _text("flow_kind"),
        _text("flow_id"),
        _text("topic"),
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
        _text("configuration"),
        _number("term", nullable=True),
        _number("started_location", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("etl_executions_flow", "etl_executions", ["flow_id", "assigned_at"])
    op.create_index(
        "etl_executions_open",
        "etl_executions",
        ["state", "assigned_at"],
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )


def _create_etl_log() -> None:
    op.create_table(
        "etl_log",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        _text("topic"),
        _number("ts"),
        _number("rows"),
        _number("max_id", nullable=True),
        _number("min_ts", nullable=True),
        _number("max_ts", nullable=True),
        sa.Column("max_lag", sa.Double, nullable=True),
        _text("nulls", nullable=True),
        _text("query_id"),
        _text("execution_id"),
        *_stamps(),
    )
    op.create_index("etl_log_topic", "etl_log", ["topic", "ts"])


def _create_datasets() -> None:
    op.create_table(
        "datasets",
        _text("flow_id"),
        _number("next_location"),
        *_stamps(),
        sa.PrimaryKeyConstraint("flow_id"),
    )
    op.create_table(
        "dataset_entities",
        _text("flow_id"),
        _number("location"),
        _text("entity_id"),
        _text("event_type", nullable=True),
        _number("at"),
        _text("entity"),
        *_stamps(),
        sa.PrimaryKeyConstraint("flow_id", "location"),
        sa.ForeignKeyConstraint(["flow_id"], ["datasets.flow_id"]),
    )
    op.create_index(
        "dataset_entities_latest", "dataset_entities", ["flow_id", "entity_id", "location"]
    )
