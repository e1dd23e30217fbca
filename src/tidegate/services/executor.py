"""Steps 3 and 6 of a block: the claim before the work, the commit after it, for every flow."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace

from tidegate.crashpoint import crashpoint
from tidegate.errors import ClaimLost, FlowFailed, TidegateError, TopicStopped
from tidegate.model.blocks import Found
from tidegate.model.execution import Block, Execution, Limits, Offset, OffsetState, Outcome, Work
from tidegate.model.failed import MOST_WAITING
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import Position
from tidegate.ports import Commit, Holders, Lake, Runner, Runtime, Store

PATIENCE_SECONDS = 60.0
"""How long a claim waits for the JVM that a dead process left behind."""


class Executor:
    """Turns an assigned execution into a committed block, or into a failure that loses nothing."""

    def __init__(
        self,
        store: Store,
        lake: Lake,
        runners: Mapping[Processor, Runner],
        holders: Holders,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._lake = lake
        self._runners = runners
        self._holders = holders
        self._runtime = runtime

    def execute(self, execution: Execution, limits: Limits | None) -> Execution:
        """Run one block, and give the execution as it ended; raises MutexError, ClaimLost."""
        return self._guarded(execution, lambda offset: self._run(execution, offset, limits))

    def give_up(self, execution: Execution, reason: str) -> Execution:
        """End an execution that cannot start, with its reason in the log like any other failure."""

        def fail(_: Offset) -> None:
            raise FlowFailed(reason)

        return self._guarded(execution, fail)

    def _guarded(self, execution: Execution, work: Callable[[Offset], None]) -> Execution:
        offset = self._claim(execution)
        try:
            work(offset)
        except ClaimLost:
            raise
        except TidegateError as error:
            self._fail(execution, error, str(error))
        except Exception as error:  # noqa: BLE001  (whatever it is, it fails this topic alone)
            self._fail(execution, error, f"{type(error).__name__}: {error}")
        ended = self._store.executions.get(execution.id)
        if ended is None:
            raise ClaimLost(f"execution {execution.id} is gone from the store")
        return ended

    def _claim(self, execution: Execution) -> Offset:
        """3a. Take the topic's mutex, from a dead holder too."""
        dead = frozenset(
            offset.hostid
            for offset in self._store.offsets.all().values()
            if offset.hostid and self._has_ended(offset, execution)
        )
        offset = self._store.executions.claim(
            execution, self._holders.me, dead, self._runtime.now()
        )
        crashpoint("block.after_claim")
        return offset

    def _has_ended(self, offset: Offset, execution: Execution) -> bool:
        if offset.topic != execution.topic:
            return not self._holders.lives(offset.hostid)
        return self._holders.wait_for_end(offset.hostid, PATIENCE_SECONDS)

    def _run(self, execution: Execution, offset: Offset, limits: Limits | None) -> None:
        # An attempt that failed wrote nothing: what was wrong with the data may be mended by now.
        died = offset.block is not None and offset.failures == 0
        if offset.block is not None:
            definition, block = self._declared(offset, offset.block)
        else:
            applied = self._store.lineages.current()[execution.topic]
            definition = applied.definition
            found = self._find(definition, applied.version, offset, limits)
            if found is None:
                complete_to = limits.complete_to if limits else 0
                self._store.executions.nothing_to_do(execution, complete_to, self._runtime.now())
                return
            offset, block = self._declare(execution, definition, found)
        waiting = tuple(self._store.failures.waiting(execution.topic, MOST_WAITING))
        work = Work(execution, definition, block, died, waiting, offset.columns)
        outcome = self._runners[definition.processor].run(work)
        self._commit(execution, offset, block, outcome)

    def _declared(self, offset: Offset, block: Block) -> tuple[Definition, Block]:
        """Give the open block with its definition: the one that it was declared with.

        A block that failed may be finished by a mended definition, else a wrong view would hold its
        topic for ever. Nothing of it was written, and its bounds stay as they are.
        """
        declared = self._store.lineages.version(offset.topic, block.definition_version)
        applied = self._store.lineages.current().get(offset.topic)
        if applied is None or offset.failures == 0 or not reads_alike(applied.definition, declared):
            return declared, block
        return applied.definition, replace(block, definition_version=applied.version)

    def _find(
        self, definition: Definition, version: int, offset: Offset, limits: Limits | None
    ) -> Block | None:
        """3b. Find the block; None when there is nothing to take."""
        if limits is None:
            # It was to finish a block that somebody else has finished meanwhile.
            return None
        self._match_table(definition, offset)
        if definition.processor is Processor.RELOAD:
            start = min(limits.complete_to, self._runtime.now() - (definition.delay or 0))
            end = max(Position(start, 0), offset.last)
            rows, full, complete_to = 0, False, start
        else:
            found = self._lake.find_block(definition, offset.last, limits.frontier, limits.bound)
            if found is None and not limits.retry:
                return None
            # A block without rows of its own brings in those that failed before and pass now.
            found = found or Found(offset.last, 0, full=False)
            end, rows, full = found.next, found.rows, found.full
            complete_to = end.pos if full else limits.complete_to
        return Block(
            last=offset.last,
            next=end,
            rows=rows,
            seq=offset.seq + 1,
            full=full,
            complete_to=max(complete_to, offset.complete_to),
            definition_version=version,
            versions=self._lake.versions(definition.listed),
        )

    def _match_table(self, definition: Definition, offset: Offset) -> None:
        """Hold the store's count of blocks against the table's own, before anything is added."""
        recorded = self._lake.recorded(definition)
        topic, table = definition.topic, definition.table
        if recorded.seq > offset.seq:
            where = f" up to {recorded.next}" if recorded.next else ""
            start = recorded.next or "POS,ID"
            raise TopicStopped(
                f"{table} holds {recorded.seq} blocks of {topic}{where}, and the store knows of"
                f" {offset.seq}; to go on behind them: tidegate offsets set {topic} --last"
                f" {str(start).strip('()').replace(' ', '')} --force"
            )
        if recorded.seq < offset.seq and definition.processor is Processor.STEP:
            raise TopicStopped(
                f"{table} holds {recorded.seq} blocks of {topic}, and the store knows of"
                f" {offset.seq}: the table was deleted or rolled back; put it back, or build it"
                f" anew: tidegate offsets set {topic} --last 0,-1 --force"
            )

    def _declare(
        self, execution: Execution, definition: Definition, block: Block
    ) -> tuple[Offset, Block]:
        """3c. Write the block down: from here on it is never computed again."""
        name = processor_name(definition, block)
        declared = self._store.executions.declare(execution, block, name, self._runtime.now())
        crashpoint("block.after_declare")
        if declared.block is None:
            raise ClaimLost(f"{execution.topic} lost its declared block")
        return declared, declared.block

    def _commit(self, execution: Execution, offset: Offset, block: Block, outcome: Outcome) -> None:
        """6. Move the position, in the one transaction that also ends the execution."""
        at = self._runtime.now()
        moved = replace(
            offset,
            last=block.next,
            seq=block.seq,
            rows=outcome.rows,
            run=at,
            state=OffsetState.DONE,
            hostid="",
            execution_id=None,
            claimed_at=None,
            complete_to=max(offset.complete_to, block.complete_to),
            failures=0,
            reason="",
            full=block.full,
            versions=block.versions,
            definition_version=block.definition_version,
            columns=outcome.columns or offset.columns,
            block=None,
        )
        crashpoint("block.before_commit")
        self._store.executions.commit(Commit(execution, moved, block, outcome, at))
        crashpoint("block.after_commit")

    def _fail(self, execution: Execution, error: Exception, reason: str) -> None:
        stop = isinstance(error, TopicStopped)
        trace = "".join(traceback.format_exception(error))
        self._store.executions.fail(execution, reason, trace, stop, self._runtime.now())


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
