"""Runs what is due until nothing is: the planner and the instance in one, in the foreground."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.errors import ClaimLost, MutexError
from tidegate.model.execution import NOTHING_TO_DO, Execution, ExecutionState
from tidegate.model.plan import Plan, Verdict
from tidegate.ports import Runtime, Store
from tidegate.services.assigning import assign
from tidegate.services.care import Care
from tidegate.services.executor import Executor
from tidegate.services.lookout import Lookout
from tidegate.services.shadows import Shadows


class Watcher(Protocol):
    """Told of what goes on, to show it to somebody."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def tended(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


@dataclass
class Report:
    """What a run did, and why the rest was not due."""

    executions: list[Execution] = field(default_factory=list)
    not_due: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        ends = (ExecutionState.FAILED, ExecutionState.LOST)
        return any(execution.state in ends for execution in self.executions)


class Foreground:
    """One run by hand: each topic to the end of what it may take, whatever fails beside it."""

    def __init__(
        self,
        lookout: Lookout,
        executor: Executor,
        store: Store,
        runtime: Runtime,
        watcher: Watcher,
        care: Care,
        shadows: Shadows,
    ) -> None:
        self._lookout = lookout
        self._executor = executor
        self._store = store
        self._runtime = runtime
        self._watcher = watcher
        self._care = care
        self._shadows = shadows
        self._report = Report()
        self._left_alone: dict[str, str] = {}
        """Topics that failed, or that another run holds: not tried again in this run."""
        self._idle: set[str] = set()
        """Topics that found nothing since the last commit."""

    def run(self, topics: Collection[str]) -> Report:
        """Run what is due of these topics, and what that makes due, until nothing is."""
        landed = self._lookout.landed(self._lookout.facts(eager=True))
        self._store.offsets.see(landed, self._runtime.now())
        while True:
            # 1. Plan, anew after every block: 8, the ripple.
            plan = self._lookout.plan(eager=True)
            verdict = self._next(plan, topics)
            if verdict is None:
                break
            self._run_one(verdict)
        # A rebuild that died may have left one that this run has published.
        self._shadows.sweep()
        failed = self._failed()
        for topic, verdict in plan.verdicts.items():
            if topic in topics and topic not in failed:
                self._report.not_due[topic] = self._left_alone.get(topic, verdict.why)
        return self._report

    def _next(self, plan: Plan, topics: Collection[str]) -> Verdict | None:
        for verdict in plan.verdicts.values():
            wanted = verdict.topic in topics and (verdict.due or verdict.broken)
            if wanted and verdict.topic not in self._left_alone and verdict.topic not in self._idle:
                return verdict
        return None

    def _run_one(self, verdict: Verdict) -> None:
        topic = verdict.topic
        execution = assign(
            self._store, self._runtime, self._executor.hostid, topic, limits=verdict.limits
        )
        self._watcher.started(topic, verdict.rows_ahead)
        try:
            ended = self._end(execution, verdict)
        except (MutexError, ClaimLost) as refusal:
            self._left_alone[topic] = str(refusal)
            self._watcher.refused(topic, str(refusal))
            return
        # 7. Report.
        self._report.executions.append(ended)
        self._watcher.ended(ended)
        if ended.state in (ExecutionState.FAILED, ExecutionState.LOST):
            self._left_alone[topic] = ended.comment
        elif ended.comment == NOTHING_TO_DO and verdict.limits is not None:
            self._idle.add(topic)
        else:
            self._idle.clear()
            self._care_for(topic)

    def _care_for(self, topic: str) -> None:
        """Tidy the table once its block is committed: nobody waits for that."""
        cared = self._care.after_block(topic)
        if cared is not None:
            self._report.executions.append(cared)
            self._watcher.tended(cared)

    def _end(self, execution: Execution, verdict: Verdict) -> Execution:
        if verdict.broken:
            return self._executor.give_up(execution, verdict.why)
        return self._executor.execute(execution)

    def _failed(self) -> set[str]:
        return {
            execution.topic
            for execution in self._report.executions
            if execution.state is ExecutionState.FAILED
        }
