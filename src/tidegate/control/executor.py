"""Steps 3 and 6 of a block: the claim before the work, the commit after it, for every flow.

Whatever the kind, the same path: claim, declare unless a block is open, run, commit. What a block
is, and how it is done, the kind's Runner knows.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tidegate.control.own_host import OwnHost
from tidegate.crashpoint import crashpoint
from tidegate.errors import (
    ClaimLost,
    FlowFailed,
    MutexError,
    Outage,
    StoreAway,
    TidegateError,
    TooManyFail,
    TopicStopped,
    WrongUse,
)
from tidegate.model.execution import Execution, ExecutionState, Outcome, Work, new_execution
from tidegate.model.flow import Definition, Flow, Kind, Operation
from tidegate.model.instances import Sharing
from tidegate.model.patience import LONGEST_WAIT, while_away
from tidegate.model.position import Block, Offset
from tidegate.ports.kinds import Nothing, Reporter, Runner
from tidegate.ports.outside import Holders, Runtime
from tidegate.ports.store import Applied, Claimed, Commit, Store

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
"""How long a claim waits for the JVM that a dead process left behind."""
LONGEST_WAIT_SECONDS = 30.0
"""Between two attempts to reach a store that is away, with an outcome in hand."""
_ENDS = (ExecutionState.FINISHED, ExecutionState.FAILED)
"""What nobody but the executor itself writes."""
_LET_GO = "lost: its worker let it go"


@dataclass(frozen=True)
class Interruption:
    """Why a running execution is to end where it stands."""

    why: str
    failure: bool = False
    """It counts as a failure; else it is handed back, as if it had never begun."""


class Executor:
    """Turns an assigned execution into a committed block, or into a failure that loses nothing."""

    def __init__(
        self,
        store: Store,
        runners: Mapping[Kind, Runner],
        holders: Holders,
        runtime: Runtime,
        reporter: Reporter,
        pause_after: int,
        lives: Callable[[], bool],
        lake: Sharing,
    ) -> None:
        self._store = store
        self._runners = runners
        self._holders = holders
        self._runtime = runtime
        self._reporter = reporter
        self._pause_after = pause_after
        self._lives = lives
        """Whether Spark is still there; asked when something has failed."""
        self._lake = lake
        self._own_host = OwnHost(store, holders, runtime)
        self._interrupted: dict[str, Interruption] = {}
        self._checkpointed: set[str] = set()
        """Executions that have committed a block: what failed before them is over."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of flows that this process runs."""
        return tuple(self._runners)

    def assign(
        self,
        flow: Flow,
        *,
        operation: Operation = Operation.BUILD,
        configuration: Mapping[str, Any] | None = None,
    ) -> Execution:
        """2. Keep an execution for this process; after one that failed or died, its retry."""
        offset = self._store.offsets.get(flow.id)
        goes_on = offset is not None and offset.goes_on
        execution = new_execution(
            self._runtime.uuid(),
            flow,
            self._runtime.now(),
            operation=operation,
            earlier=self._store.executions.list(flow=flow.id, limit=1) if goes_on else (),
            configuration=configuration,
            worker=self._holders.me,
        )
        self._store.executions.assign(execution)
        return execution

    def execute(self, execution: Execution) -> Execution:
        """3 to 7. Run one execution, and give it as it ended.

        Raises MutexError, ClaimLost, and WrongUse where others have the lake.
        """
        return self._guarded(execution, self._run)

    def follow_up(self, ended: Execution) -> Execution | None:
        """Do what the lane needs after an execution that finished; None when it needs nothing."""
        wanted = self._runners[ended.flow_kind].follow_up(ended)
        if wanted is None:
            return None
        flow = Flow(ended.flow_id, ended.flow_kind, ended.lane)
        try:
            return self.execute(self.assign(flow, operation=wanted))
        except (MutexError, ClaimLost):
            # Somebody else works in the lane: after the next block is early enough.
            return None

    def give_up(self, execution: Execution, reason: str, *, away: bool = False) -> Execution:
        """End an execution that cannot start, with its reason in the log like any other failure."""

        def fail(_: Claimed) -> None:
            raise Outage(reason) if away else FlowFailed(reason)

        return self._guarded(execution, fail)

    def interrupt(self, execution_id: str, why: Interruption) -> None:
        """Let a running execution end: its block stays open, nothing is lost."""
        self._interrupted[execution_id] = why
        for runner in self._runners.values():
            runner.interrupt(execution_id)

    def _guarded(
        self, execution: Execution, work: Callable[[Claimed], Execution | None]
    ) -> Execution:
        claimed = self._claim(execution)
        self._reporter.began(execution)
        try:
            ended = self._attempt(claimed, work)
            if ended is not None:
                return ended
        except ClaimLost:
            # Also when the answer to its end was lost on its way: then it has that end.
            if self._ended(execution).state not in _ENDS:
                self._let_go(execution)
                raise
        finally:
            self._interrupted.pop(execution.id, None)
            self._checkpointed.discard(execution.id)
        ended = self._ended(execution)
        self._reporter.ended(ended, ())
        return ended

    def _attempt(
        self, claimed: Claimed, work: Callable[[Claimed], Execution | None]
    ) -> Execution | None:
        execution, offset = claimed.execution, claimed.offset
        try:
            return work(claimed)
        except ClaimLost:
            raise
        except StoreAway as error:
            # Nothing is wrong with the flow: what was begun is finished by the next.
            self._hand_back(execution, f"handed back: {error}")
        except TidegateError as error:
            self._fail(execution, offset, error, str(error))
        except Exception as error:  # noqa: BLE001  (whatever it is, it fails this flow alone)
            self._fail(execution, offset, error, f"{type(error).__name__}: {error}")
        return None

    def _let_go(self, execution: Execution) -> None:
        """Free the flow of an execution that was taken away, if it still stands in its name.

        Whoever took it away could not see that nobody writes any more; this process can.
        """
        with suppress(ClaimLost):
            self._hand_back(execution, _LET_GO)

    def _hand_back(self, execution: Execution, why: str) -> None:
        at = self._runtime.now()
        self._until_store_answers(
            execution, lambda: self._store.blocks.hand_back(execution, why, at)
        )

    def _ended(self, execution: Execution) -> Execution:
        ended = self._until_store_answers(
            execution, lambda: self._store.executions.get(execution.id)
        )
        if ended is None:
            raise ClaimLost(f"execution {execution.id} is gone from the store")
        return ended

    def _until_store_answers(self, execution: Execution, call: Callable[[], T]) -> T:
        """Wait out a store that is away: the work is done, and must not be done again for that.

        But a worker that is to end does not wait for ever: what was written is found there.
        """
        wait = 1.0
        while True:
            try:
                return call()
            except StoreAway:
                interruption = self._interrupted.get(execution.id)
                if interruption is not None and not interruption.failure:
                    raise
                self._runtime.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _claim(self, execution: Execution) -> Claimed:
        """3a. Take the flow's mutex, from a dead holder too."""
        claim, me, lake = self._store.blocks.claim, self._holders.me, self._lake
        try:
            try:
                claimed = claim(execution, me, None, self._runtime.now(), lake)
            except MutexError:
                # Only where somebody holds the flow, or its lane, does it matter who lives.
                claimed = claim(execution, me, self._dead(execution), self._runtime.now(), lake)
            except WrongUse:
                # The same where somebody has the lake.
                dead = self._own_host.dead()
                claimed = claim(execution, me, dead, self._runtime.now(), lake)
        except StoreAway:
            # It may be claimed all the same, and only the answer be lost.
            self._let_go(execution)
            raise
        crashpoint("block.after_claim")
        return claimed

    def _dead(self, execution: Execution) -> frozenset[str]:
        return frozenset(
            offset.hostid
            for offset in self._store.offsets.in_lane(execution.lane)
            if offset.hostid and self._has_ended(offset, execution)
        )

    def _has_ended(self, offset: Offset[Any], execution: Execution) -> bool:
        if offset.topic != execution.topic:
            return not self._holders.lives(offset.hostid)
        return self._holders.wait_for_end(offset.hostid, PATIENCE_SECONDS)

    def _run(self, claimed: Claimed) -> Execution | None:
        runner = self._runners[claimed.execution.flow_kind]
        if not claimed.execution.operation.moves:
            work = _standing(claimed)
            return self._commit(work, None, runner.run(work, _no_checkpoint))
        declared = self._declared(claimed, runner)
        if isinstance(declared, Nothing):
            at = self._runtime.now()
            self._store.blocks.nothing_to_do(claimed.execution, declared.complete_to, at)
            return None
        work = declared

        def checkpoint(outcome: Outcome, next: Block[Any] | None) -> None:
            nonlocal work
            work = self._checkpoint(work, outcome, next)

        outcome = runner.run(work, checkpoint)
        return self._commit(work, work.offset.block, outcome)

    def _declared(self, claimed: Claimed, runner: Runner) -> Work | Nothing:
        """Give the block with its definition: the open one, or what the Runner finds, declared."""
        execution, offset = claimed.execution, claimed.offset
        open = offset.block
        if open is None or execution.operation.finishes_anew:
            applied = applied_of(claimed)
            found = runner.declare(claimed)
            if isinstance(found, Nothing):
                return found
            if found != open:
                # 3c. Written down: from here on it is never computed again.
                declared = self._store.blocks.declare(execution, found, self._runtime.now())
                crashpoint("block.after_declare")
                return Work(execution, applied.definition, declared, found)
            open = found
        definition, block = self._open_block(offset, open)
        # An attempt that failed wrote nothing: what was wrong may be mended by now. Of one that
        # storage failed nobody knows.
        died = offset.failures == 0 or offset.away_since is not None
        return Work(execution, definition, replace(offset, block=block), block, died)

    def _open_block(self, offset: Offset[Any], block: Block[Any]) -> tuple[Definition, Block[Any]]:
        """Give the open block with its definition: the one that it was declared with.

        A block that failed may be finished by a mended definition, else a wrong one would hold its
        flow for ever. Nothing of it was written, and its bounds stay as they are.
        """
        declared = self._store.definitions.version(offset.topic, block.definition_version)
        applied = self._store.definitions.applied(offset.topic)
        if applied is None or offset.failures == 0:
            return declared, block
        if not applied.definition.may_finish(block, declared):
            return declared, block
        return applied.definition, replace(block, definition_version=applied.version)

    def _commit(self, work: Work, block: Block[Any] | None, outcome: Outcome) -> Execution:
        """6. Move the position, in the one transaction that also ends the execution."""
        crashpoint("block.before_commit")
        commit = Commit(work.execution, work.offset, block, outcome, self._runtime.now())
        committed = self._until_store_answers(
            work.execution, lambda: self._store.blocks.commit(commit)
        )
        crashpoint("block.after_commit")
        self._reporter.ended(committed.execution, committed.streams)
        return committed.execution

    def _checkpoint(self, work: Work, outcome: Outcome, next: Block[Any] | None) -> Work:
        """6. Commit the block and declare the next; the execution goes on. Raises ClaimLost."""
        crashpoint("block.before_checkpoint")
        block = work.offset.block
        commit = Commit(work.execution, work.offset, block, outcome, self._runtime.now())
        committed = self._until_store_answers(
            work.execution, lambda: self._store.blocks.checkpoint(commit, next)
        )
        self._checkpointed.add(work.execution.id)
        crashpoint("block.after_checkpoint")
        offset = committed.offset
        return replace(
            work,
            execution=committed.execution,
            offset=offset,
            block=next or offset.standing(),
            died=False,
        )

    def _fail(self, execution: Execution, held: Offset[Any], error: Exception, reason: str) -> None:
        interruption = self._interrupted.get(execution.id)
        if interruption is None and not self._lives():
            interruption = Interruption("lost: Spark is gone")
        if interruption is not None and not interruption.failure:
            self._hand_back(execution, interruption.why)
            return
        trace = "".join(traceback.format_exception(error))
        if interruption is not None:
            reason = interruption.why
        elif isinstance(error, Outage):
            # No fault of the flow: it waits, and never stops.
            known = replace(held, away_since=None) if self._has_committed(execution) else held
            self._end(execution, reason, trace, wait=while_away(known), away=True)
            return
        failures = 1 if self._has_committed(execution) else held.failures + 1
        stop = isinstance(error, TopicStopped)
        if not stop and failures >= self._pause_after:
            stop, reason = True, f"{reason} (failed {failures} times in a row)"
        # What breaks a limit breaks it again, until somebody or something changes.
        wait = LONGEST_WAIT if isinstance(error, TooManyFail) else 0
        self._end(execution, reason, trace, stop=stop, wait=wait)

    def _has_committed(self, execution: Execution) -> bool:
        return execution.id in self._checkpointed

    def _end(
        self,
        execution: Execution,
        reason: str,
        trace: str,
        *,
        stop: bool = False,
        wait: int = 0,
        away: bool = False,
    ) -> None:
        at, fail = self._runtime.now(), self._store.blocks.fail
        self._until_store_answers(
            execution, lambda: fail(execution, reason, trace, stop, at, wait=wait, away=away)
        )


def _standing(claimed: Claimed) -> Work:
    """Give what an operation works on that leaves its flow where it is."""
    definition, offset = applied_of(claimed).definition, claimed.offset
    return Work(claimed.execution, definition, offset, offset.standing())


def _no_checkpoint(outcome: Outcome, next: Block[Any] | None) -> None:  # noqa: ARG001
    raise ClaimLost("an operation that leaves its flow where it is has no checkpoints")


def applied_of(claimed: Claimed) -> Applied:
    """Give the definition in force; raises FlowFailed for a flow that was removed."""
    if claimed.applied is None:
        flow = claimed.execution.flow_id
        raise FlowFailed(f"{flow} is no longer defined: it was removed meanwhile")
    return claimed.applied
