"""Lets a load fail on a row that must not be in it, in the load's own pass."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidegate.model.lineage import Definition

BAD_POSITION = "TIDEGATE_POSITION"
BAD_ROW = "TIDEGATE_CHECK"


def guard_block(rows: DataFrame, definition: Definition) -> DataFrame:
    """Fail on a row outside of the block."""
    pos, id = f"`{definition.pos}`", f"`{definition.id}`"
    return rows.where(_or_raise(f"block({pos}, {id}, typeof({pos}))", BAD_POSITION))


def guard_checks(rows: DataFrame, definition: Definition) -> DataFrame:
    """Fail on a row that a check is not true for; NULL is not true."""
    if not definition.checks:
        return rows
    # One condition for all of them: each would cost a branch of its own in every row.
    every = " AND ".join(f"coalesce(({check}), false)" for check in definition.checks.values())
    return rows.where(_or_raise(every, BAD_ROW))


def _or_raise(condition: str, marker: str) -> str:
    return f"CASE WHEN {condition} THEN true ELSE raise_error('{marker}') END"
