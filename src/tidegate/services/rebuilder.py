"""Rebuilds tables beside the old ones, block by block, and publishes each in one commit.

    1 commit what an execution that died has written
    2 find the topic's shadow, or begin one
    3 build it up to where the topic stands, each block by the executor, like any Step
    4 publish it: a block of the topic itself, whose write is one overwrite from the shadow
    5 sweep the shadow away

Killed anywhere, the next rebuild goes on from there: a shadow has a position of its own. Readers
see the old table until the one commit of 4. A Reload is written whole in one commit anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tidegate.errors import ClaimLost, MutexError, WrongUse
from tidegate.model.execution import NOTHING_TO_DO, Execution, ExecutionState, Limits, Offset
from tidegate.model.lineage import Definition, LineageCycle, Processor, order
from tidegate.model.position import GREATEST, START, Position, before, rfc3339
from tidegate.model.rebuild import REBUILD
from tidegate.ports import Lake, Runtime, Shadow, Store
from tidegate.services.assigning import assign
from tidegate.services.executor import Executor
from tidegate.services.foreground import Report, Watcher
from tidegate.services.lookout import Lookout
from tidegate.services.shadows import Shadows

_KIND = "rebuild"


class Rebuilder:
    """One rebuild by hand, of topics in the order of dependence."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        store: Store,
        lake: Lake,
        shadows: Shadows,
        executor: Executor,
        lookout: Callable[[], Lookout],
        runtime: Runtime,
        watcher: Watcher,
    ) -> None:
        self._definitions = definitions
        self._store = store
        self._lake = lake
        self._shadows = shadows
        self._executor = executor
        self._lookout = lookout
        self._runtime = runtime
        self._watcher = watcher
        self._report = Report()
        self._left: dict[str, str] = {}
        """Tables that were to be rebuilt and were not."""

    def run(self, topics: Collection[str], *, force: bool = False) -> Report:
        """Rebuild the topics, each after what it reads; one that fails holds up those behind it."""
        if not force:
            self._require_bases(topics)
        for definition in self._in_order():
            if definition.topic in topics and not self._rebuilt(definition):
                self._left[definition.table] = definition.topic
        self._shadows.sweep()
        return self._report

    def _in_order(self) -> list[Definition]:
        """Put each topic behind all that it reads, waited for or not, as far as that goes."""
        every = self._definitions.values()
        try:
            ordered = order(replace(one, depends_on=one.listed) for one in every)
        except LineageCycle:
            ordered = order(every)
        return [self._definitions[one.topic] for one in ordered]

    def _require_bases(self, topics: Collection[str]) -> None:
        """Refuse to lose rows: those whose base rows were deleted since they were taken.

        Below a table with keys that is no fault: an update moves a row on.
        """
        for topic in sorted(topics):
            definition = self._definitions[topic]
            if definition.processor is not Processor.STEP or definition.keys:
                continue
            taken = [row.block for row in self._store.journal.blocks(topic) if row.block.rows]
            if not taken:
                continue
            base = definition.base
            ahead = self._lake.ahead(base, definition.base_pos, definition.base_id, START)
            if ahead.first is None or ahead.first > taken[0].next.pos:
                begins = "is empty" if ahead.first is None else f"begins at {rfc3339(ahead.first)}"
                raise WrongUse(
                    f"{base} {begins}, and {topic} was built from rows before that: a rebuild"
                    " would lose them; bring them back first, or say --force"
                )

    def _rebuilt(self, definition: Definition) -> bool:
        topic = definition.topic
        waits_for = next((self._left[name] for name in definition.listed if name in self._left), "")
        if waits_for:
            self._report.not_due[topic] = f"{waits_for}, which it reads, was not rebuilt"
            return False
        try:
            if definition.processor is Processor.RELOAD:
                return self._reload(definition)
            return self._step(topic)
        except (MutexError, ClaimLost) as refusal:
            self._report.not_due[topic] = str(refusal)
            self._watcher.refused(topic, str(refusal))
            return False

    def _step(self, topic: str) -> bool:
        while True:
            applied = self._store.lineages.applied(topic)
            assert applied is not None, "it was applied before the rebuild began"
            real = self._store.offsets.get(topic) or Offset(topic, START)
            if self._is_written(applied.definition, real):
                # It has only to be committed; then see whether that is what is wanted now.
                if not self._publish(topic, real.last):
                    return False
                if real.processor == REBUILD and self._version(topic) == applied.version:
                    return True
                continue
            upto = real.block.next if real.block is not None else real.last
            if upto == START:
                self._report.not_due[topic] = "nothing of it is built yet: `tidegate run` builds it"
                return True
            shadow = self._shadows.of(applied.definition, real)
            if not self._build(shadow, upto) or not self._publish(topic, upto):
                return False
            if self._store.rebuilds.of(topic) is None:
                return True
            # The topic went on meanwhile, or had a block to finish: build on, and come again.

    def _is_written(self, definition: Definition, real: Offset) -> bool:
        block = real.block
        return block is not None and self._lake.recorded(definition).seq >= block.seq

    def _version(self, topic: str) -> int | None:
        offset = self._store.offsets.get(topic)
        return offset.definition_version if offset else None

    def _build(self, shadow: Shadow, upto: Position) -> bool:
        """Build the shadow on, up to a position; tell whether it is there."""
        base = shadow.definition
        at = shadow.offset
        ahead = self._lake.ahead(base.base, base.base_pos, base.base_id, at.last).rows
        while at.block is not None or at.seq == 0 or at.last < upto:
            # The first block is made even without rows: a table has columns all the same.
            limits = Limits(self._runtime.now(), upto, GREATEST, upto.pos, retry=at.seq == 0)
            declared = at.block is not None
            ended = self._execute(shadow.topic, None if declared else limits, ahead)
            if ended.state is not ExecutionState.FINISHED:
                return False
            if ended.comment == NOTHING_TO_DO and not declared:
                return True
            at = self._store.offsets.get(shadow.topic) or at
        return True

    def _execute(
        self, topic: str, limits: Limits | None, ahead: int = 0, *, anew: bool = False
    ) -> Execution:
        execution = self._assign(topic, limits)
        self._watcher.started(topic, ahead)
        return self._ended(self._executor.execute(execution, anew=anew))

    def _publish(self, topic: str, upto: Position) -> bool:
        execution = self._assign(topic, None)
        self._watcher.started(topic, 0)
        ended = self._ended(self._executor.publish(execution, upto))
        return ended.state is ExecutionState.FINISHED

    def _assign(self, topic: str, limits: Limits | None) -> Execution:
        me = self._executor.hostid
        return assign(self._store, self._runtime, me, topic, kind=_KIND, limits=limits)

    def _ended(self, execution: Execution) -> Execution:
        self._report.executions.append(execution)
        self._watcher.ended(execution)
        return execution

    def _reload(self, definition: Definition) -> bool:
        """Run a Reload whether it is due or not, and let its table take other columns."""
        topic = definition.topic
        offset = self._store.offsets.get(topic)
        if offset is not None and offset.block is not None:
            ended = self._execute(topic, None, anew=True)
            if ended.state is not ExecutionState.FINISHED:
                return False
        # Looked at only now: what it reads may have been rebuilt a moment ago.
        plan = self._lookout().plan(eager=True)
        verdict = plan.verdicts[topic]
        if not all(plan.tables[name].exists for name in definition.depends_on):
            self._report.not_due[topic] = verdict.why
            return False
        at = verdict.complete_to
        limits = verdict.limits or Limits(plan.now, before(at), at, at)
        return self._execute(topic, limits, anew=True).state is ExecutionState.FINISHED
