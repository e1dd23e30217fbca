"""A row may hold several messages that were sent together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    several = sa.Column("several", sa.BigInteger, nullable=False, server_default="1")
    op.add_column("messages", several)
