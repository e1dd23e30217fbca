"""Reload: the whole table anew in one overwrite commit; readers see the old one or the new one."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.load import transaction
from tidegate.model.execution import Work


def write_reload(
    session: SparkSession,  # noqa: ARG001  (the same form as every write of a load)
    rows: DataFrame,
    work: Work,
    path: str,
    metadata: str,
) -> None:
    """Step 5 for a whole table."""
    options = transaction(work.definition.topic, work.block.seq, metadata)
    rows.write.format("delta").mode("overwrite").options(**options).save(path)
