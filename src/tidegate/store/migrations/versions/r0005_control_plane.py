"""The control plane: instances, phases, leadership, and what people want of flows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _stamps() -> tuple[sa.Column[int], sa.Column[int]]:
    return _number("created_at"), _number("updated_at")


def upgrade() -> None:
    op.add_column("etl_executions", sa.Column("tags", sa.Text, nullable=True))
    op.create_table(
        "etl_instances",
        _text("instance_id"),
        _text("name"),
        _text("host"),
        _number("pid", nullable=True),
        _text("process"),
        _text("kinds"),
        _text("tags"),
        _text("state"),
        _text("status"),
        sa.Column("disabled", sa.Boolean, nullable=False),
        _number("reported_at", nullable=True),
        _number("started_at"),
        _number("status_updated_at"),
        *_stamps(),
        sa.PrimaryKeyConstraint("instance_id"),
    )
    op.create_table(
        "etl_phase_executions",
        _text("execution_id"),
        _text("phase"),
        _text("data_stream_name"),
        _text("instance_id"),
        _number("stream_started_at", nullable=True),
        _number("stream_finished_at", nullable=True),
        _number("stream_failed_at", nullable=True),
        _text("comment"),
        _number("total_in_messages", nullable=True),
        _number("total_out_messages", nullable=True),
        _number("total_failed_messages", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("execution_id", "phase", "data_stream_name", "instance_id"),
    )
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, nullable=False),
        _number("term"),
        _text("holder"),
        _number("expires_at"),
        _number("elected_at"),
        *_stamps(),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "flow_wishes",
        _text("flow_id"),
        _number("paused_at", nullable=True),
        _text("paused_by"),
        _text("paused_why"),
        _number("run_asked_at", nullable=True),
        *_stamps(),
        sa.PrimaryKeyConstraint("flow_id"),
    )
