"""What a view gives for a block, and how Spark would read it: shown, never written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from tidegate.errors import FlowFailed, TidegateError, UnknownName, WrongUse
from tidegate.model.execution import Block, Offset
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import GREATEST, START, Position
from tidegate.model.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.engine.session import SparkHost
    from tidegate.wiring import Parts


_TEMPORARY = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?TEMP(?:ORARY)?\s", re.IGNORECASE)


@dataclass(frozen=True)
class Asked:
    """Which view, for whom, and over which block."""

    name: str
    topic: str | None
    last: str | None
    next: str | None


def preview(
    parts: Parts, spark: SparkHost, asked: Asked, limit: int
) -> tuple[list[str], list[list[Any]]]:
    """Give the columns and the first rows of a view, for the block from `last` to `next`."""
    with _rows(parts, spark, asked) as rows:
        first = rows.limit(limit)
        return first.columns, [[_shown(value) for value in row] for row in first.collect()]


def plan_of(parts: Parts, spark: SparkHost, asked: Asked) -> str:
    """Give the plan by which Spark would read a view for that block."""
    told = StringIO()
    with _rows(parts, spark, asked) as rows, redirect_stdout(told):
        rows.explain(mode="formatted")
    return told.getvalue().strip()


@contextmanager
def _rows(parts: Parts, spark: SparkHost, asked: Asked) -> Iterator[DataFrame]:
    from tidegate.engine.failures import sentence
    from tidegate.engine.views import Workbench

    name = asked.name.lower()
    definition = _user_of(parts, name, asked.topic)
    offset = parts.store.offsets.get(definition.topic) or Offset(definition.topic, START)
    after = _position("--last", asked.last) or offset.last
    upto = _position("--next", asked.next) or offset.next or Position(GREATEST // 1000, GREATEST)
    if asked.topic != definition.topic:
        definition = definition.whole()
    bench = Workbench(parts.tables, spark.catalogued)
    block = Block(after, upto, 0, offset.seq + 1, False, 0, 0)
    session = spark.fresh()
    try:
        bench.define(session, definition, block)
        bench.run_statements(session, definition, "before", _temporary(definition.before))
        yield bench.rows(session, replace(definition, transforms=(name,)), {})
    except TidegateError:
        raise
    except Exception as error:
        raise FlowFailed(f"view {asked.name}: {sentence(error)}") from error


def _temporary(before: str) -> str:
    """Keep of `before` what the session alone sees: a preview writes nothing."""
    return ";\n".join(text for text in statements(before) if _TEMPORARY.match(text))


def _user_of(parts: Parts, name: str, topic: str | None) -> Definition:
    if name not in parts.project.views:
        names = ", ".join(sorted(parts.project.views)) or "none"
        raise UnknownName(f"there is no view {name!r}; there are: {names}")
    users = [
        definition
        for definition in parts.project.definitions.values()
        if name in definition.views and definition.processor is not Processor.SOURCE
    ]
    if topic is not None:
        users = [
            definition for definition in users if topic in (definition.topic, definition.entry)
        ]
    if not users:
        raise WrongUse(f"no topic{f' {topic}' if topic else ''} uses the view {name}")
    return users[0]


def _position(option: str, text: str | None) -> Position | None:
    if text is None:
        return None
    try:
        return Position.parse(text)
    except ValueError as error:
        raise WrongUse(f"{option}: {error}") from None


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)
