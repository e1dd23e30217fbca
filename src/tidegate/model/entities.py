"""The entities of a task execution dataset, field for field; and what fails, waits, or is dead.

Each row that fails is exactly one of written, waiting and dead. What a load finds out is kept as
pending before its write, and becomes true with the commit of its block: so a crash between the two
loses no row, and a write that is skipped as a repeat still knows what became of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from tidegate.model.execution import Execution
from tidegate.model.flow import Definition
from tidegate.model.position import Position


def dataset_id(flow: str) -> str:
    """Name the dataset that holds a flow's log."""
    return f"system:task_execution:{flow}"


def task_started(execution: Execution, definition: Definition | None, at: int) -> dict[str, Any]:
    return {
        "_id": "task-started",
        "event_type": "task-started",
        "task_definition": execution.flow_id,
        "task_instance": execution.id,
        "start_time": entity_time(at),
        "source": dict(definition.source()) if definition else {},
        "sink": dict(definition.sink()) if definition else {},
    }


def task_completed(ended: Execution, location: int, *, retryable: bool, at: int) -> dict[str, Any]:
    """End a run that did its work; its start stands at `location`."""
    return {**_end("task-completed", ended, location, at), **_counts(ended, retryable)}


def task_failed(
    ended: Execution,
    location: int,
    started: Mapping[str, Any],
    *,
    reason: str,
    retryable: bool,
    at: int,
) -> dict[str, Any]:
    """End a run that failed, with what it had committed; `started` stands at `location`."""
    return {
        **_end("task-failed", ended, location, at),
        **_counts(ended, retryable),
        "reason_why_stopped": reason,
        "source": started["source"],
        "sink": started["sink"],
    }


def _counts(ended: Execution, retryable: bool) -> dict[str, Any]:
    return {
        "retry_entities_exist": retryable,
        "entities_succeeded": ended.rows or 0,
        "entities_failed": ended.failed,
    }


def write_error(execution: Execution, row: FailedRow, at: int) -> dict[str, Any]:
    """Tell of a row that stays out of its table, or that is in it by now."""
    waits = row.state is FailedState.WAITING
    return {
        "_id": f"write-error:{row.entity_id}",
        "event_type": "write-error",
        "task_definition": execution.flow_id,
        "task_instance": execution.id,
        # 1: this very row; the table as a whole was there to be written.
        "error_code": 1,
        "event_time": entity_time(at),
        "retry_attempts": row.attempts,
        "retryable": waits,
        "dead": row.state is FailedState.DEAD,
        "state": row.state.value,
        "entity": {**row.entity, "_id": row.entity_id},
        "exception": row.reason,
        "underlying_exception": row.reason if row.raised else "",
        "sink": {"type": execution.flow_kind.value, execution.flow_kind.value: execution.lane},
    }


def operator_action(flow: str, by: str, what: str, at: int) -> dict[str, Any]:
    """Tell who did what by hand, and when."""
    return {
        "_id": f"operator-action:{entity_time(at)}:{what}",
        "event_type": "operator-action",
        "task_definition": flow,
        "user": by,
        "action": what,
        "event_time": entity_time(at),
    }


def _end(event: str, ended: Execution, location: int, at: int) -> dict[str, Any]:
    return {
        "_id": event,
        "event_type": event,
        "task_definition": ended.flow_id,
        "task_instance": ended.id,
        "start_time": entity_time(ended.started_at or at),
        "end_time": entity_time(at),
        "task_started_location": location,
    }


@lru_cache(10_000)
def entity_time(milliseconds: int) -> str:
    """Write a time as `YYYY-MM-DDTHH:mm:SS.fZ`."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


MOST_WAITING = 10_000
"""Rows of a topic that may wait at a time, all tried again at once; over it the step fails."""


class FailedState(StrEnum):
    """What has become of a row that failed, and who moves it on."""

    WAITING = "waiting"  # by the commit of a block; later blocks try it again
    WRITTEN = "written"  # by the commit of the block that brought it in; an end
    DEAD = "dead"  # by the commit of the block that tried it once too often; an end


@dataclass(frozen=True)
class FailedRow:
    """A row that stays out of its table, with the reason."""

    position: Position
    """Of the base row; (0, 0) in a Reload."""
    hash: int
    """Tells the rows of one position apart: of the row's content or, with keys, of its keys."""
    entity: Mapping[str, Any]
    reason: str
    raised: bool = False
    """Spark failed over the base row, which then is the entity; else a check was not true."""
    attempts: int = 0
    """How often it was tried again."""
    state: FailedState = FailedState.WAITING

    @property
    def entity_id(self) -> str:
        return f"{self.position.pos}:{self.position.id}:{self.hash & (2**64 - 1):016x}"

    def tried_again(self, reason: str, most: int) -> FailedRow:
        """Count a try that failed too."""
        tries = self.attempts + 1
        state = FailedState.DEAD if tries >= most else FailedState.WAITING
        return replace(self, attempts=tries, reason=reason, state=state)

    def brought_in(self) -> FailedRow:
        return replace(self, attempts=self.attempts + 1, state=FailedState.WRITTEN)


def over_limit(failed: int, rows: int, most: int, share: float) -> str:
    """Say which limit a block breaks with so many failing rows; empty when it breaks none."""
    if failed > most:
        return f"more than max_failed_rows, {most:,}"
    if rows and failed / rows > share:
        return f"{failed / rows:.0%} of the block, more than max_failed_share, {share:g}"
    return ""
