"""Rows that fail, the columns that a topic gave last, figures of the user's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("offsets", sa.Column("columns", sa.Text, nullable=True))
    op.add_column("etl_log", sa.Column("figures", sa.Text, nullable=True))
    op.create_table(
        "failed_rows",
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("entity_id", sa.Text, nullable=False),
        sa.Column("pos", sa.BigInteger, nullable=False),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.BigInteger, nullable=False),
        sa.Column("raised", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=True),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("entity", sa.Text, nullable=False),
        sa.Column("pending_seq", sa.BigInteger, nullable=True),
        sa.Column("pending", sa.Text, nullable=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("topic", "entity_id"),
    )
    op.create_index("failed_rows_state", "failed_rows", ["topic", "state", "attempts"])
