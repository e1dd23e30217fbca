"""A run by hand while a manager leads: asks it to run topics now, and looks on until it has."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.model.execution import NOTHING_TO_DO, Execution, ExecutionState
from tidegate.model.plan import Plan
from tidegate.ports import Runtime, Store
from tidegate.services.foreground import Report, Watcher
from tidegate.services.lookout import Lookout

LOOK_SECONDS = 0.3


class Delegate:
    """One run by hand, done by others."""

    def __init__(
        self, lookout: Lookout, store: Store, runtime: Runtime, watcher: Watcher, user: str
    ) -> None:
        self._lookout = lookout
        self._store = store
        self._runtime = runtime
        self._watcher = watcher
        self._user = user
        self._ended: dict[str, Execution] = {}
        self._started: set[str] = set()

    def run(self, topics: Collection[str]) -> Report:
        """Have the manager run what is due of these topics, until nothing is."""
        since = self._runtime.now()
        self._store.wishes.ask_to_run(sorted(topics), self._user, since)
        asked = dict.fromkeys(topics, since)
        while True:
            plan = self._lookout.plan(eager=True)
            open = self._follow(topics, since)
            due = self._due(plan, topics)
            if not due and not open:
                break
            # A topic that ran since it was asked to, and is due again by what others brought.
            again = [topic for topic in due if topic not in open and self._ran(topic, asked[topic])]
            if again:
                now = self._runtime.now()
                self._store.wishes.ask_to_run(again, self._user, now)
                asked |= dict.fromkeys(again, now)
            self._runtime.sleep(LOOK_SECONDS)
        executions = sorted(self._ended.values(), key=lambda one: one.assigned_at or 0)
        failed = self._failed()
        not_due = {
            topic: verdict.why
            for topic, verdict in plan.verdicts.items()
            if topic in topics and topic not in failed
        }
        return Report(executions, not_due)

    def _failed(self) -> set[str]:
        """Give the topics that are left alone for the rest of the run."""
        ended = self._ended.values()
        return {one.topic for one in ended if one.state is ExecutionState.FAILED}

    def _follow(self, topics: Collection[str], since: int) -> set[str]:
        """See what has begun and ended; give the topics that are at work."""
        open = [one for one in self._store.executions.open() if one.topic in topics]
        for execution in open:
            if execution.id not in self._started:
                self._started.add(execution.id)
                self._watcher.started(execution.topic, 0)
        for execution in self._since(since):
            # One that an instance refused, being busy, is no run: the manager gives it to another.
            ran = not execution.state.open and execution.state is not ExecutionState.REJECTED
            if ran and execution.topic in topics and execution.id not in self._ended:
                self._ended[execution.id] = execution
                self._watcher.ended(execution)
        return {execution.topic for execution in open}

    def _since(self, since: int) -> list[Execution]:
        newest = self._store.executions.list(limit=1000)
        return [one for one in newest if (one.assigned_at or 0) >= since]

    def _due(self, plan: Plan, topics: Collection[str]) -> list[str]:
        left_alone = self._failed()
        return [
            verdict.topic
            for verdict in plan.due
            if verdict.topic in topics
            and verdict.topic not in left_alone
            and not self._found_nothing(verdict.topic)
        ]

    def _found_nothing(self, topic: str) -> bool:
        """Tell whether the topic came last with empty hands, and nothing was committed since."""
        ended = sorted(self._ended.values(), key=lambda one: one.finished_at or 0)
        last = next((one for one in reversed(ended) if one.topic == topic), None)
        if last is None or last.comment != NOTHING_TO_DO:
            return False
        after = (one for one in ended if (one.finished_at or 0) > (last.finished_at or 0))
        return all(one.comment == NOTHING_TO_DO for one in after)

    def _ran(self, topic: str, asked: int) -> bool:
        offset = self._store.offsets.get(topic)
        return offset is not None and (offset.run or 0) > asked
