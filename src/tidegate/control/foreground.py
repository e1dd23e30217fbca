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
            return self._executor.give_up(execution, verdict.why, away=verdict.away)
        return self._executor.execute(execution)

    def _failed(self) -> set[str]:
        return {
            execution.topic
            for execution in self._report.executions
            if execution.state is ExecutionState.FAILED
        }


LOOK_SECONDS = 0.3
OVERLAP = 10_000
"""Milliseconds that each look for what has begun goes back behind the last: clocks differ."""
WITHOUT_WORKERS = 60_000
"""Milliseconds that a manager may take until it has a worker again: Spark has to start."""


class Delegate:
    """One run by hand, done by others."""

    def __init__(
        self,
        planners: Collection[Planner],
        store: Store,
        runtime: Runtime,
        watcher: Watcher,
        user: str,
        managed: Callable[[], bool],
        lease: int,
    ) -> None:
        self._planners = planners
        self._store = store
        self._runtime = runtime
        self._watcher = watcher
        self._user = user
        self._managed = managed
        """Tells whether a manager leads now, and has somebody to give work to."""
        self._lease = lease
        self._alone_since: float | None = None
        """By the clock that never jumps: since when it is not managed."""
        self._others: frozenset[str] = frozenset()
        """What was there before this run."""
        self._begun_upto = 0
        """When the newest execution was assigned that was seen; by the clock of who assigned it."""
        self._ended: dict[str, Execution] = {}
        self._started: set[str] = set()
        self._at_work: set[str] = set()

    def run(self, flows: Collection[str]) -> Report:
        """Have the manager run what is due of these flows, until nothing is, or nobody is there."""
        since = self._runtime.now()
        self._begin(flows, since)
        self._store.controls.ask_to_run(sorted(flows), self._user, since)
        asked = dict.fromkeys(flows, since)
        while True:
            judged = judge(self._planners)
            open = self._follow(flows)
            due = self._due(judged, flows)
            cut_short = self._cut_short({*due, *open}) if due or open else ""
            if cut_short or not (due or open):
                break
            # A flow that ran since it was asked to, and is due again by what others brought.
            again = [flow for flow in due if flow not in open and self._ran(flow, asked[flow])]
            if again:
                now = self._runtime.now()
                self._store.controls.ask_to_run(again, self._user, now)
                asked |= dict.fromkeys(again, now)
            self._runtime.sleep(LOOK_SECONDS)
        executions = sorted(self._ended.values(), key=lambda one: one.assigned_at or 0)
        left_out = self._failed() | ({*due, *open} if cut_short else set())
        not_due = {
            flow: verdict.why
            for flow, (_, verdict) in judged.items()
            if flow in flows and flow not in left_out
        }
        return Report(executions, not_due, cut_short)

    def _begin(self, flows: Collection[str], at: int) -> None:
        """See what was there before: who assigned it has a clock of their own."""
        open = (one.id for one in self._store.executions.open() if one.topic in flows)
        begun = (one.id for one in self._store.executions.begun(flows, at - OVERLAP))
        self._others = frozenset([*open, *begun])
        self._begun_upto = at

    def _cut_short(self, left: Collection[str]) -> str:
        """Say that nobody is there any more to run what is left; empty while somebody is."""
        if self._managed():
            self._alone_since = None
            return ""
        now = self._runtime.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        leads = self._store.leadership.read().established(self._lease)
        # Another manager may take over, or start a worker: that much time they are given.
        if (now - self._alone_since) * 1000 < (WITHOUT_WORKERS if leads else self._lease):
            return ""
        gone = "the manager that leads has no worker" if leads else "no manager leads any more"
        return (
            f"{gone}, so nobody runs what is left: {', '.join(sorted(left))};"
            " `tidegate run` does it here, `tidegate up` starts a manager"
        )

    def _failed(self) -> set[str]:
        """Give the flows that are left alone for the rest of the run."""
        ended = self._ended.values()
        return {one.topic for one in ended if one.state is ExecutionState.FAILED}

    def _follow(self, flows: Collection[str]) -> set[str]:
        """See what has begun and ended; give the flows that are at work."""
        open = [one for one in self._store.executions.open() if one.topic in flows]
        for execution in open:
            self._start(execution)
        at_work = {one.id for one in open} - self._others
        # What was seen at work is known by its id; what came and went unseen, by its time.
        through = [*self._store.executions.some(self._at_work - at_work).values()]
        begun = self._store.executions.begun(flows, self._begun_upto - OVERLAP)
        self._at_work = at_work
        for execution in [*through, *begun]:
            self._begun_upto = max(self._begun_upto, execution.assigned_at or 0)
            self._end(execution)
        return {execution.topic for execution in open}

    def _start(self, execution: Execution) -> None:
        if execution.id not in self._started:
            self._started.add(execution.id)
            self._watcher.started(execution.topic, 0)

    def _end(self, execution: Execution) -> None:
        known = execution.id in self._ended or execution.id in self._others
        # One that an instance refused, being busy, is no run: the manager gives it to another.
        if known or execution.state.open or execution.state is ExecutionState.REJECTED:
            return
        self._ended[execution.id] = execution
        if execution.operation.moves:
            self._start(execution)
            self._watcher.ended(execution)
        else:
            self._watcher.maintained(execution)

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
