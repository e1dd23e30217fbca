"""A flow knows since when what it stands on fails, and how long it is left alone for that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("offsets", sa.Column("away_since", sa.BigInteger, nullable=True))
    wait = sa.Column("wait", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("offsets", wait)
