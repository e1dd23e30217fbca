"""Lets Spark analyse every view of a project: what sqlglot cannot know, columns and types."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.engine.failures import sentence
from tidegate.engine.looks import Tables
from tidegate.engine.session import SparkHost
from tidegate.engine.views import Workbench
from tidegate.errors import FlowFailed
from tidegate.model.execution import Block
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import START


def analyse(
    spark: SparkHost, tables: Tables, definitions: Mapping[str, Definition]
) -> list[tuple[str, int, str]]:
    """Give (view, line, message) for each topic whose views Spark refuses.

    A topic whose tables are not all there yet cannot be analysed, and is left out.
    """
    bench = Workbench(tables, spark.catalogued)
    findings: list[tuple[str, int, str]] = []
    block = Block(START, START, 0, 0, False, 0, 0)
    for definition in definitions.values():
        if definition.processor is Processor.SOURCE:
            continue
        if definition.shard and definition.shard.number > 0:
            # What is true of the first shard is true of the others.
            continue
        if not all(map(tables.exists, definition.listed)):
            continue
        session = spark.fresh()
        try:
            bench.define(session, definition, block)
            columns = {name.lower() for name in bench.rows(session, definition, {}).columns}
        except FlowFailed as error:
            findings.append((definition.transforms[0], 1, str(error)))
        except Exception as error:  # noqa: BLE001  (whatever Spark says, it says of this view)
            message = f"{definition.topic}: {sentence(error)}"
            findings.append((definition.transforms[-1], 1, message))
        else:
            missing = sorted({name.lower() for name in definition.keys} - columns)
            findings += [
                (definition.transforms[0], 1, f"{definition.topic}: does not give the key {name}")
                for name in missing
            ]
    return findings
