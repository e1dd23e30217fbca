"""Tries whether Spark starts and can write a Delta table to the lake, and leaves nothing there."""

from __future__ import annotations

import shutil
import uuid

from tidegate.engine.failures import sentence
from tidegate.engine.session import SparkHost
from tidegate.errors import LakeError


def write_and_read(spark: SparkHost, lake: str) -> str:
    """Write a row to the lake, read it back, and say with what."""
    session = spark.fresh()
    path = f"{lake}/.tidegate-probe-{uuid.uuid4()}"
    try:
        session.range(1).write.format("delta").save(path)
        rows = session.read.format("delta").load(path).count()
    except Exception as error:
        message = f"Spark cannot write a Delta table below {lake}: {sentence(error)}"
        raise LakeError(message) from error
    finally:
        if "://" not in path:
            shutil.rmtree(path, ignore_errors=True)
    if rows != 1:
        raise LakeError(f"Spark wrote one row below {lake} and read {rows}")
    return f"Spark {session.version} wrote and read a Delta table"
