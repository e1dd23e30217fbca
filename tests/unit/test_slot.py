"""What a worker says in its log of how an execution ended."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.property.lake import ModelRuntime, World
from tidegate.control.slot import Assignment, Assignments
from tidegate.model.execution import Execution, ExecutionState, configuration_of
from tidegate.model.flow import Flow, Kind, Operation
from tidegate.model.instances import Pace

FLOW = Flow("fact.readings", Kind.TABLE, "fact.readings")


class Ending:
    """Stands for an executor whose executions all end in one way."""

    kinds = (Kind.TABLE,)

    def __init__(self, state: ExecutionState, comment: str = "", rows: int | None = None) -> None:
        self._end: dict[str, Any] = {"state": state, "comment": comment, "rows": rows}

    def execute(self, execution: Execution) -> Execution:
        return replace(execution, **self._end)

    def follow_up(self, ended: Execution) -> None:
        assert ended.state is ExecutionState.FINISHED


def said(caplog: pytest.LogCaptureFixture, ending: Ending) -> tuple[str, str]:
    """Give level and text of the last that is said of an execution."""
    caplog.set_level(logging.INFO)
    runtime, nobody = ModelRuntime(World(0, ())), cast("Any", None)
    work = Assignments(nobody, cast("Any", ending), nobody, runtime, Pace(), nobody, foreign=None)
    configuration = configuration_of(FLOW, Operation.BUILD, {})
    assert work.run(Assignment("e-1", "i-1", configuration))
    return caplog.records[-1].levelname, caplog.records[-1].getMessage()


def test_a_failure_is_a_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    failed = Ending(ExecutionState.FAILED, "no such column")
    assert said(caplog, failed) == ("WARNING", "fact.readings: failed: no such column")
    away = Ending(ExecutionState.FAILED, "away: No space left on device")
    assert said(caplog, away) == (
        *("WARNING", "fact.readings: failed: away: No space left on device"),
    )


def test_a_loss_is_a_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    lost = Ending(ExecutionState.LOST, "lost: Spark is gone")
    assert said(caplog, lost) == ("WARNING", "fact.readings: lost: Spark is gone")


def test_an_end_is_none(caplog: pytest.LogCaptureFixture) -> None:
    finished = Ending(ExecutionState.FINISHED, rows=7)
    assert said(caplog, finished) == ("INFO", "fact.readings: finished, 7 rows")
