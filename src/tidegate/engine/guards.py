"""Lets a load fail on a row that must not be in it, in the load's own pass."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidegate.model.lineage import Definition, Processor

BAD_POSITION = "TIDEGATE_POSITION"
BAD_ROW = "TIDEGATE_CHECK"


def guard(rows: DataFrame, definition: Definition, *, checks: bool, movable: bool) -> DataFrame:
    """Fail on a row outside of the block, and on one that a check is not true for.

    Spark pushes a plain condition below joins, where it fails for rows that the join drops. One
    that is not movable counts its rows, which keeps it where it stands.
    """
    faults = []
    if definition.processor is Processor.STEP:
        pos, id = f"`{definition.pos}`", f"`{definition.id}`"
        faults.append((f"block({pos}, {id}, typeof({pos}))", BAD_POSITION))
    if checks and definition.checks:
        # NULL is not true.
        every = " AND ".join(f"coalesce(({check}), false)" for check in definition.checks.values())
        faults.append((every, BAD_ROW))
    if not faults:
        return rows
    cases = " ".join(f"WHEN NOT ({test}) THEN raise_error('{marker}')" for test, marker in faults)
    passes = "true" if movable else "monotonically_increasing_id() >= 0"
    return rows.where(f"CASE {cases} ELSE {passes} END")
