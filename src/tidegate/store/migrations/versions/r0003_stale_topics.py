"""What made a topic stale, and when its table was vacuumed last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("offsets", sa.Column("stale", sa.Text, nullable=True))
    op.add_column("offsets", sa.Column("vacuumed_at", sa.BigInteger, nullable=True))
