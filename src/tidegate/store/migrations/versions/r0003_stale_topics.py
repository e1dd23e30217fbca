"""Topics whose table no longer shows what it was built from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("offsets", sa.Column("stale", sa.Text, nullable=True))
