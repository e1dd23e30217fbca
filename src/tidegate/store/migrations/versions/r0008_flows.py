"""Flows of every kind: lane and operation of an execution, markers beside (pos, id)."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_MARKERS = {
    "offsets": ("last_marker", "next_marker", "block_last_marker"),
    "blocks": ("last_marker", "next_marker"),
}
_FORMER_KINDS = {"care": "maintain", "rebuild": "publish"}
"""What was kept as the kind of a flow, and is an operation on a table."""


def upgrade() -> None:
    op.rename_table("flow_wishes", "flow_controls")
    op.drop_index("offsets_destination", "offsets")
    op.execute("ALTER TABLE offsets RENAME COLUMN destination TO lane")
    op.create_index("offsets_lane", "offsets", ["lane"])
    for table, names in _MARKERS.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.Text, nullable=True))
    op.add_column("lineage", sa.Column("kind", sa.Text, nullable=False, server_default="table"))
    for column in (
        sa.Column("lane", sa.Text, nullable=False, server_default=""),
        sa.Column("operation", sa.Text, nullable=False, server_default="build"),
        sa.Column("failed", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("etl_executions", column)
    _say_what_executions_do()


def _say_what_executions_do() -> None:
    executions = sa.table(
        "etl_executions",
        *(
            sa.column(name)
            for name in ("id", "topic", "flow_kind", "lane", "operation", "finished_at")
        ),
    )
    offsets = sa.table("offsets", sa.column("topic"), sa.column("lane"))
    # The blocks of a table that is built beside are those of any Step.
    shadow = executions.c.topic.contains("__rebuild_", autoescape=True)
    for kind, operation in _FORMER_KINDS.items():
        former = executions.c.flow_kind == kind
        op.execute(
            sa.update(executions)
            .where(former)
            .values(
                flow_kind="table",
                operation=sa.case((shadow, "build"), else_=operation),
            )
        )
    lane = sa.select(offsets.c.lane).where(offsets.c.topic == executions.c.topic).scalar_subquery()
    op.execute(sa.update(executions).values(lane=sa.func.coalesce(lane, executions.c.topic)))
    # One that is open may be of a topic that has no row yet.
    unclaimed = executions.c.finished_at.is_(None) & executions.c.topic.not_in(
        sa.select(offsets.c.topic)
    )
    wanted = sa.select(executions.c.topic).where(unclaimed).distinct()
    for topic in op.get_bind().execute(wanted).scalars().all():
        table = re.split("[#:]", topic, maxsplit=1)[0]
        op.execute(sa.update(executions).where(executions.c.topic == topic).values(lane=table))
    # Nobody else's business, and so in nobody's way.
    foreign = executions.c.flow_kind == "external"
    op.execute(sa.update(executions).where(foreign).values(lane=executions.c.id))
