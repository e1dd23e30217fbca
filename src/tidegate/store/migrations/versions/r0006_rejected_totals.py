"""Messages that nobody could take are counted beyond those that are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "rejected_totals",
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("topic"),
    )
    op.create_index("rejected_messages_where", "rejected_messages", ["topic", "where"])
    op.execute(
        "INSERT INTO rejected_totals (topic, messages, created_at, updated_at)"
        " SELECT topic, count(*), min(created_at), max(created_at)"
        " FROM rejected_messages GROUP BY topic"
    )
