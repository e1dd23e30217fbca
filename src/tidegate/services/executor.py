"""Steps 3 and 6 of a block: the claim before the work, the commit after it, for every flow."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from tidegate.crashpoint import crashpoint
from tidegate.errors import (
    ClaimLost,
    FlowFailed,
    MutexError,
    StoreAway,
    TidegateError,
    TopicStopped,
)
from tidegate.model.assignment import limits_of
from tidegate.model.care import Care
from tidegate.model.execution import Block, Execution, ExecutionState, Offset, Outcome, Work
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import Position
from tidegate.model.rebuild import REBUILD, made_stale, publication, shadow_of
from tidegate.ports import (
    Applied,
    Claimed,
    Commit,
    Holders,
    Lake,
    Rebuilt,
    Reporter,
    Runner,
    Runtime,
    Store,
)
from tidegate.services.finding import Finder, require_known

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
        lake: Lake,
        runners: Mapping[Processor, Runner],
        publisher: Runner,
        holders: Holders,
        runtime: Runtime,
        reporter: Reporter,
        pause_after: int,
        lives: Callable[[], bool],
    ) -> None:
        self._store = store
        self._lake = lake
        self._finder = Finder(lake, runtime)
        self._runners = runners
        self._publisher = publisher
        self._holders = holders
        self._runtime = runtime
        self._reporter = reporter
        self._pause_after = pause_after
        self._lives = lives
        """Whether Spark is still there; asked when something has failed."""
        self._interrupted: dict[str, Interruption] = {}

    @property
    def hostid(self) -> str:
        """The name under which this process takes topics."""
        return self._holders.me

    def execute(self, execution: Execution, *, anew: bool = False) -> Execution:
        """Run one block, and give the execution as it ended; raises MutexError, ClaimLost."""
        return self._guarded(execution, lambda claimed: self._run(claimed, anew))

    def publish(self, execution: Execution, upto: Position) -> Execution:
        """Put what was built beside up to a position in the place of the topic's table.

        Where the topic stands elsewhere by now, nothing happens.
        """
        return self._guarded(execution, lambda claimed: self._publish(claimed, upto))

    def tend(self, execution: Execution, before: Offset, work: Callable[[], Care]) -> Execution:
        """Tidy a table in its topic's lane; whatever comes of it, the topic stays as it was."""
        self._claim(execution)
        try:
            care = work()
        except Exception as error:  # noqa: BLE001  (a table that is not tidy is still right)
            care = Care(f"table care failed: {error}")
        crashpoint("care.before_end")
        at = self._runtime.now()
        try:
            self._insist(
                execution, lambda: self._store.executions.tended(execution, before, care, at)
            )
        except ClaimLost:
            self._let_go(execution)
            raise
        return self._ended(execution)

    def interrupt(self, execution_id: str, why: Interruption) -> None:
        """Let a running execution end: its block stays open, nothing is lost."""
        self._interrupted[execution_id] = why
        for runner in {*self._runners.values(), self._publisher}:
            runner.interrupt(execution_id)

    def give_up(self, execution: Execution, reason: str) -> Execution:
        """End an execution that cannot start, with its reason in the log like any other failure."""

        def fail(_: Claimed) -> None:
            raise FlowFailed(reason)

        return self._guarded(execution, fail)

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
            # Nothing is wrong with the topic: what was begun is finished by the next.
            self._hand_back(execution, f"handed back: {error}")
        except TidegateError as error:
            self._fail(execution, offset, error, str(error))
        except Exception as error:  # noqa: BLE001  (whatever it is, it fails this topic alone)
            self._fail(execution, offset, error, f"{type(error).__name__}: {error}")
        return None

    def _let_go(self, execution: Execution) -> None:
        """Free the topic of an execution that was taken away, if it still stands in its name.

        Whoever took it away could not see that nobody writes any more; this process can.
        """
        with suppress(ClaimLost):
            self._hand_back(execution, _LET_GO)

    def _hand_back(self, execution: Execution, why: str) -> None:
        at = self._runtime.now()
        self._insist(execution, lambda: self._store.executions.hand_back(execution, why, at))

    def _ended(self, execution: Execution) -> Execution:
        ended = self._insist(execution, lambda: self._store.executions.get(execution.id))
        if ended is None:
            raise ClaimLost(f"execution {execution.id} is gone from the store")
        return ended

    def _insist(self, execution: Execution, call: Callable[[], T]) -> T:
        """Wait out a store that is away: the work is done, and must not be done again for that.

        But a worker that is to end does not wait for ever: what is in the table is found there.
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
        """3a. Take the topic's mutex, from a dead holder too."""
        claim, me = self._store.executions.claim, self._holders.me
        try:
            try:
                claimed = claim(execution, me, None, self._runtime.now())
            except MutexError:
                # Only where somebody holds the topic, or its lane, does it matter who lives.
                claimed = claim(execution, me, self._dead(execution), self._runtime.now())
        except StoreAway:
            # It may be claimed all the same, and only the answer be lost.
            self._let_go(execution)
            raise
        crashpoint("block.after_claim")
        return claimed

    def _dead(self, execution: Execution) -> frozenset[str]:
        return frozenset(
            offset.hostid
            for offset in self._store.offsets.lane(execution.topic)
            if offset.hostid and self._has_ended(offset, execution)
        )

    def _has_ended(self, offset: Offset, execution: Execution) -> bool:
        if offset.topic != execution.topic:
            return not self._holders.lives(offset.hostid)
        return self._holders.wait_for_end(offset.hostid, PATIENCE_SECONDS)

    def _run(self, claimed: Claimed, anew: bool = False) -> Execution | None:
        execution, offset = claimed.execution, claimed.offset
        # As they were stored, whatever a message said.
        limits = limits_of(execution.configuration)
        # An attempt that failed wrote nothing: what was wrong with the data may be mended by now.
        died = offset.block is not None and offset.failures == 0
        if offset.block is not None:
            definition, block = self._declared(offset, offset.block)
        else:
            applied = _applied(claimed)
            definition = applied.definition
            found = self._finder.find(definition, applied.version, offset, limits)
            if found is None:
                complete_to = limits.complete_to if limits else 0
                self._store.executions.nothing_to_do(execution, complete_to, self._runtime.now())
                return None
            name = processor_name(definition, found)
            offset, block = self._declare(execution, name, found)
        if offset.processor == REBUILD:
            return self._finish_publication(execution, definition, offset, block)
        work = Work(execution, definition, block, died, claimed.waiting, offset.columns, anew=anew)
        outcome = self._runners[definition.processor].run(work)
        rebuilt = None
        if definition.processor is Processor.RELOAD:
            rebuilt = Rebuilt(offset.stale, self._made_stale(execution.topic) if anew else {})
        return self._commit(execution, definition, offset, block, outcome, rebuilt)

    def _made_stale(self, topic: str) -> Mapping[str, str]:
        current = self._store.lineages.current()
        definitions = {name: applied.definition for name, applied in current.items()}
        return made_stale(definitions, topic, self._runtime.now())

    def _publish(self, claimed: Claimed, upto: Position) -> Execution | None:
        applied, execution, offset = _applied(claimed), claimed.execution, claimed.offset
        definition, block = applied.definition, offset.block
        recorded = self._lake.recorded(definition)
        if block is not None and recorded.seq >= block.seq:
            # What is in the table already, of this kind or that, has only to be committed.
            return self._run(claimed)
        require_known(definition, offset, recorded)
        shadow = self._store.rebuilds.of(execution.topic)
        if (
            shadow is not None
            and (block.next if block else offset.last) == upto
            and shadow_of(definition, shadow.topic) == shadow.definition
        ):
            versions = {**shadow.offset.versions, **self._lake.versions([shadow.definition.table])}
            found = publication(offset, applied.version, versions)
            declared = self._declare(execution, REBUILD, found)
            return self._finish_publication(execution, definition, *declared)
        if block is None:
            at = self._runtime.now()
            self._store.executions.nothing_to_do(execution, offset.complete_to, at)
            return None
        raise FlowFailed(
            f"{execution.topic} went on while it was rebuilt; the next `tidegate rebuild"
            f" {execution.topic}` goes on from here"
        )

    def _finish_publication(
        self, execution: Execution, definition: Definition, offset: Offset, block: Block
    ) -> Execution:
        topic = execution.topic
        shadow = self._store.rebuilds.of(topic)
        if shadow is None or shadow.definition.table not in block.versions:
            raise TopicStopped(
                f"what was to take the place of {definition.table} is gone, or was begun anew; go"
                f" on with: tidegate rebuild {topic}"
            )
        crashpoint("rebuild.before_publish")
        beside = shadow.definition.table
        outcome = self._publisher.run(Work(execution, definition, block, False, beside=beside))
        crashpoint("rebuild.after_publish")
        rebuilt = Rebuilt(shadow.offset.stale, self._made_stale(topic), shadow.topic)
        return self._commit(execution, definition, offset, block, outcome, rebuilt)

    def _declared(self, offset: Offset, block: Block) -> tuple[Definition, Block]:
        """Give the open block with its definition: the one that it was declared with.

        A block that failed may be finished by a mended definition, else a wrong view would hold its
        topic for ever. Nothing of it was written, and its bounds stay as they are.
        """
        declared = self._store.lineages.version(offset.topic, block.definition_version)
        applied = self._store.lineages.applied(offset.topic)
        if applied is None or offset.failures == 0 or offset.processor == REBUILD:
            return declared, block
        if not reads_alike(applied.definition, declared):
            return declared, block
        return applied.definition, replace(block, definition_version=applied.version)

    def _declare(self, execution: Execution, processor: str, block: Block) -> tuple[Offset, Block]:
        """3c. Write the block down: from here on it is never computed again."""
        at = self._runtime.now()
        declared = self._store.executions.declare(execution, block, processor, at)
        crashpoint("block.after_declare")
        if declared.block is None:
            raise ClaimLost(f"{execution.topic} lost its declared block")
        return declared, declared.block

    def _commit(
        self,
        execution: Execution,
        definition: Definition,
        offset: Offset,
        block: Block,
        outcome: Outcome,
        rebuilt: Rebuilt | None,
    ) -> Execution:
        """6. Move the position, in the one transaction that also ends the execution."""
        at = self._runtime.now()
        moved = offset.behind(block, outcome, at)
        crashpoint("block.before_commit")
        commit = Commit(execution, moved, block, outcome, at, definition, rebuilt)
        committed = self._insist(execution, lambda: self._store.executions.commit(commit))
        crashpoint("block.after_commit")
        self._reporter.ended(committed.execution, committed.streams)
        return committed.execution

    def _fail(self, execution: Execution, held: Offset, error: Exception, reason: str) -> None:
        at, interruption = self._runtime.now(), self._interrupted.get(execution.id)
        if interruption is None and not self._lives():
            interruption = Interruption("lost: Spark is gone")
        if interruption is not None and not interruption.failure:
            self._hand_back(execution, interruption.why)
            return
        if interruption is not None:
            reason = interruption.why
        failures = held.failures + 1
        stop = isinstance(error, TopicStopped)
        if not stop and failures >= self._pause_after:
            stop, reason = True, f"{reason} (failed {failures} times in a row)"
        trace = "".join(traceback.format_exception(error))
        self._insist(
            execution, lambda: self._store.executions.fail(execution, reason, trace, stop, at)
        )


def _applied(claimed: Claimed) -> Applied:
    if claimed.applied is None:
        topic = claimed.execution.topic
        raise FlowFailed(f"{topic} is no longer defined: it was removed meanwhile")
    return claimed.applied


def reads_alike(one: Definition, other: Definition) -> bool:
    """Tell whether the bounds of a block mean the same rows to both."""
    return (one.processor, one.depends_on[:1], one.base_pos, one.base_id, one.shard) == (
        other.processor,
        other.depends_on[:1],
        other.base_pos,
        other.base_id,
        other.shard,
    )


def processor_name(definition: Definition, block: Block) -> str:
    """Name what promotes the offset, for people who look for problems."""
    if definition.processor is Processor.RELOAD:
        return "Reload"
    return "FullStep" if block.full else "Step"
