"""What a view gives for a block, read and shown, never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import FlowFailed, TidegateError, UnknownName, WrongUse
from tidegate.model.execution import Block, Offset
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import GREATEST, START, Position

if TYPE_CHECKING:
    from tidegate.engine.session import SparkHost
    from tidegate.wiring import Parts


def preview(
    parts: Parts,
    spark: SparkHost,
    name: str,
    topic: str | None,
    last: str | None,
    next: str | None,
    limit: int,
) -> tuple[list[str], list[list[Any]]]:
    """Give the columns and the first rows of a view, for the block from `last` to `next`."""
    from dataclasses import replace

    from tidegate.engine.failures import sentence
    from tidegate.engine.views import Workbench

    definition = _user_of(parts, name.lower(), topic)
    offset = parts.store.offsets.get(definition.topic) or Offset(definition.topic, START)
    after = _position("--last", last) or offset.last
    upto = _position("--next", next) or offset.next or Position(GREATEST // 1000, GREATEST)
    bench = Workbench(parts.tables)
    block = Block(after, upto, 0, offset.seq + 1, False, 0, 0)
    session = spark.fresh()
    try:
        bench.define(session, definition, block)
        shown = replace(definition, transforms=(name.lower(),))
        rows = bench.rows(session, shown, {}).limit(limit)
        return rows.columns, [[_shown(value) for value in row] for row in rows.collect()]
    except TidegateError:
        raise
    except Exception as error:
        raise FlowFailed(f"view {name}: {sentence(error)}") from error


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
        users = [definition for definition in users if definition.topic == topic]
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
