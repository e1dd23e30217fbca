"""A run by hand: what is due is run here until nothing is, or by the manager that leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tidegate.control.executor import Executor
from tidegate.errors import ClaimLost, MutexError
from tidegate.model.execution import NOTHING_TO_DO, Execution, ExecutionState
from tidegate.ports.kinds import Instruction, Planner, Report, Verdict, Watcher
from tidegate.ports.outside import Runtime
from tidegate.ports.store import Store


def judge(planners: Iterable[Planner]) -> dict[str, tuple[Planner, Verdict]]:
    """Look at every flow of every kind, as a person does: whose it is, and what is said of it."""
    return {
        flow: (planner, verdict)
        for planner in planners
        for flow, verdict in planner.verdicts(eager=True).items()
    }


class Foreground:
    """One run by hand: each flow to the end of what it may take, whatever fails beside it."""

    def __init__(
        self,
        planners: Collection[Planner],
        executor: Executor,
        watcher: Watcher,
        clear: Callable[[], None],
    ) -> None:
        self._planners = planners
        self._executor = executor
        self._watcher = watcher
        self._clear = clear
        """Deletes what executions that died have left beside."""
        self._report = Report()
        self._left_alone: dict[str, str] = {}
        """Flows that failed, or that another run holds: not tried again in this run."""
        self._idle: set[str] = set()
        """Flows that found nothing since the last commit."""

    def run(self, flows: Collection[str]) -> Report:
        """Run what is due of these flows, and what that makes due, until nothing is."""
        judged = judge(self._planners)
        for planner in self._planners:
            planner.record_looks()
        # 1. Plan, anew after every block: 8, the ripple.
        while (found := self._next(judged, flows)) is not None:
            self._run_one(*found)
            judged = judge(self._planners)
        self._clear()
        failed = self._failed()
        for flow, (_, verdict) in judged.items():
            if flow in flows and flow not in failed:
                self._report.not_due[flow] = self._left_alone.get(flow, verdict.why)
        return self._report

    def _next(
        self, judged: Mapping[str, tuple[Planner, Verdict]], flows: Collection[str]
    ) -> tuple[Verdict, Instruction] | None:
        for flow, (planner, verdict) in judged.items():
            wanted = flow in flows and (verdict.due or verdict.broken)
            if wanted and flow not in self._left_alone and flow not in self._idle:
                (instruction,) = planner.instruct([flow])
                return verdict, instruction
        return None

    def _run_one(self, verdict: Verdict, instruction: Instruction) -> None:
        flow, configuration = instruction.flow, instruction.configuration
        # 2. Assign.
        execution = self._executor.assign(flow, configuration=configuration)
        self._watcher.started(flow.id, verdict.rows_ahead)
        try:
            ended = self._end(execution, verdict)
        except (MutexError, ClaimLost) as refusal:
            self._left_alone[flow.id] = str(refusal)
            self._watcher.refused(flow.id, str(refusal))
            return
        # 7. Report.
        self._report.executions.append(ended)
        self._watcher.ended(ended)
        if ended.state in (ExecutionState.FAILED, ExecutionState.LOST):
            self._left_alone[flow.id] = ended.comment
        elif ended.comment == NOTHING_TO_DO and configuration:
            self._idle.add(flow.id)
        else:
            self._idle.clear()
            self._follow_up(ended)

    def _follow_up(self, ended: Execution) -> None:
        """Tidy up once the block is committed: nobody waits for that."""
        maintained = self._executor.follow_up(ended)
        if maintained is not None:
            self._report.executions.append(maintained)
            self._watcher.maintained(maintained)

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


LOOK_SECONDS = 0.3


class Delegate:
    """One run by hand, done by others."""

    def __init__(
        self,
        planners: Collection[Planner],
        store: Store,
        runtime: Runtime,
        watcher: Watcher,
        user: str,
    ) -> None:
        self._planners = planners
        self._store = store
        self._runtime = runtime
        self._watcher = watcher
        self._user = user
        self._ended: dict[str, Execution] = {}
        self._started: set[str] = set()

    def run(self, flows: Collection[str]) -> Report:
        """Have the manager run what is due of these flows, until nothing is."""
        since = self._runtime.now()
        self._store.controls.ask_to_run(sorted(flows), self._user, since)
        asked = dict.fromkeys(flows, since)
        while True:
            judged = judge(self._planners)
            open = self._follow(flows, since)
            due = self._due(judged, flows)
            if not due and not open:
                break
            # A flow that ran since it was asked to, and is due again by what others brought.
            again = [flow for flow in due if flow not in open and self._ran(flow, asked[flow])]
            if again:
                now = self._runtime.now()
                self._store.controls.ask_to_run(again, self._user, now)
                asked |= dict.fromkeys(again, now)
            self._runtime.sleep(LOOK_SECONDS)
        executions = sorted(self._ended.values(), key=lambda one: one.assigned_at or 0)
        failed = self._failed()
        not_due = {
            flow: verdict.why
            for flow, (_, verdict) in judged.items()
            if flow in flows and flow not in failed
        }
        return Report(executions, not_due)

    def _failed(self) -> set[str]:
        """Give the flows that are left alone for the rest of the run."""
        ended = self._ended.values()
        return {one.topic for one in ended if one.state is ExecutionState.FAILED}

    def _follow(self, flows: Collection[str], since: int) -> set[str]:
        """See what has begun and ended; give the flows that are at work."""
        open = [one for one in self._store.executions.open() if one.topic in flows]
        for execution in open:
            if execution.id not in self._started:
                self._started.add(execution.id)
                self._watcher.started(execution.topic, 0)
        for execution in self._since(since):
            # One that an instance refused, being busy, is no run: the manager gives it to another.
            ran = not execution.state.open and execution.state is not ExecutionState.REJECTED
            if ran and execution.topic in flows and execution.id not in self._ended:
                self._ended[execution.id] = execution
                self._watcher.ended(execution)
        return {execution.topic for execution in open}

    def _since(self, since: int) -> list[Execution]:
        newest = self._store.executions.list(limit=1000)
        return [one for one in newest if (one.assigned_at or 0) >= since]

    def _due(
        self, judged: Mapping[str, tuple[Planner, Verdict]], flows: Collection[str]
    ) -> list[str]:
        left_alone = self._failed()
        return [
            flow
            for flow, (_, verdict) in judged.items()
            if verdict.due
            and flow in flows
            and flow not in left_alone
            and not self._found_nothing(flow)
        ]

    def _found_nothing(self, flow: str) -> bool:
        """Tell whether the flow came last with empty hands, and nothing was committed since."""
        ended = sorted(self._ended.values(), key=lambda one: one.finished_at or 0)
        last = next((one for one in reversed(ended) if one.topic == flow), None)
        if last is None or last.comment != NOTHING_TO_DO:
            return False
        after = (one for one in ended if (one.finished_at or 0) > (last.finished_at or 0))
        return all(one.comment == NOTHING_TO_DO for one in after)

    def _ran(self, flow: str, asked: int) -> bool:
        offset = self._store.offsets.get(flow)
        return offset is not None and (offset.run or 0) > asked
