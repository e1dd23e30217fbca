"""The entities of a task execution dataset have the fields of the seed."""

from __future__ import annotations

import json
from dataclasses import replace

from tidegate.model.entities import (
    dataset_id,
    entity_time,
    task_completed,
    task_failed,
    task_started,
)
from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.flow import Kind
from tidegate.tables.definition import Processor, TableDefinition

EXECUTION = Execution(
    "e-1",
    Kind.TABLE,
    "fact.orders",
    "fact.orders",
    ExecutionState.RUNNING,
    started_at=1_700_000_000_123,
)
DEFINITION = TableDefinition(
    "fact.orders",
    Processor.STEP,
    ("stage.orders", "stage.customers"),
    transforms=("orders",),
    keys=("order_id",),
)
STARTED = task_started(EXECUTION, DEFINITION, 1_700_000_000_123)


def test_a_start_names_flow_run_time_source_and_sink() -> None:
    assert STARTED["_id"] == STARTED["event_type"] == "task-started"
    assert (STARTED["task_definition"], STARTED["task_instance"]) == ("fact.orders", "e-1")
    assert STARTED["start_time"] == "2023-11-14T22:13:20.123000Z"
    assert STARTED["source"]["depends_on"] == ["stage.orders", "stage.customers"]
    assert STARTED["sink"]["table"] == "fact.orders"
    assert json.loads(json.dumps(STARTED)) == STARTED


def test_a_start_without_a_definition_is_still_a_start() -> None:
    started = task_started(EXECUTION, None, 0)
    assert started["source"] == started["sink"] == {}


def test_a_completion_counts_and_points_back_to_its_start() -> None:
    ended = replace(EXECUTION, rows=10, failed=2)
    done = task_completed(ended, 7, retryable=True, at=1_700_000_001_000)
    assert done["_id"] == done["event_type"] == "task-completed"
    assert done["task_started_location"] == 7
    assert done["start_time"] == STARTED["start_time"] < done["end_time"]
    assert (done["entities_succeeded"], done["entities_failed"]) == (10, 2)
    assert done["retry_entities_exist"] is True


def test_a_failure_says_why_and_took_nothing() -> None:
    failed = task_failed(
        EXECUTION, 7, STARTED, reason="no such column", retryable=False, at=1_700_000_001_000
    )
    assert failed["event_type"] == "task-failed"
    assert failed["reason_why_stopped"] == "no such column"
    assert failed["entities_succeeded"] == failed["entities_failed"] == 0
    assert (failed["source"], failed["sink"]) == (STARTED["source"], STARTED["sink"])


def test_times_are_written_to_the_microsecond_without_a_rounding_error() -> None:
    assert entity_time(1_700_000_000_001) == "2023-11-14T22:13:20.001000Z"
    assert {entity_time(ms)[-7:-4] for ms in range(1000)} == {f"{ms:03d}" for ms in range(1000)}


def test_each_flow_has_a_dataset_of_its_own() -> None:
    assert dataset_id("fact.orders#web") == "system:task_execution:fact.orders#web"
