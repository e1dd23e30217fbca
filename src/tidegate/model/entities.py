"""The entities of a task execution dataset, field for field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tidegate.model.execution import Execution
from tidegate.model.failed import FailedRow, FailedState
from tidegate.model.lineage import Definition, TopicName


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
        "source": source_of(definition),
        "sink": sink_of(definition),
    }


def task_completed(
    ended: Execution, location: int, *, succeeded: int, failed: int, retryable: bool, at: int
) -> dict[str, Any]:
    """End a run that did its work; its start stands at `location`."""
    return {
        **_end("task-completed", ended, location, at),
        "retry_entities_exist": retryable,
        "entities_succeeded": succeeded,
        "entities_failed": failed,
    }


def task_failed(
    ended: Execution, location: int, started: Mapping[str, Any], *, reason: str, at: int
) -> dict[str, Any]:
    """End a run that failed: none of its rows were taken. `started` stands at `location`."""
    return {
        **_end("task-failed", ended, location, at),
        "retry_entities_exist": False,
        "entities_succeeded": 0,
        "entities_failed": 0,
        "reason_why_stopped": reason,
        "source": started["source"],
        "sink": started["sink"],
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
        "sink": {"type": "table", "table": TopicName.parse(execution.topic).table},
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


def source_of(definition: Definition | None) -> dict[str, Any]:
    """Describe where a table's rows come from."""
    if definition is None:
        return {}
    return {
        "type": "tables",
        "depends_on": list(definition.depends_on),
        "unwaited": list(definition.unwaited),
        "transforms": list(definition.transforms),
        "delay": definition.delay,
        "maxstep": definition.maxstep,
    }


def sink_of(definition: Definition | None) -> dict[str, Any]:
    """Describe the table that a topic writes."""
    if definition is None:
        return {}
    return {
        "type": "table",
        "table": definition.table,
        "processor": definition.processor.value,
        "keys": list(definition.keys),
        "checks": dict(definition.checks),
    }


@lru_cache(10_000)
def entity_time(milliseconds: int) -> str:
    """Write a time as `YYYY-MM-DDTHH:mm:SS.fZ`."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"
