"""Rebuilds tables beside the old ones, block by block, and publishes each in one commit.

    1 commit what an execution that died has written
    2 find the topic's shadow, or begin one
    3 build it up to where the topic stands, each block by the executor, like any Step
    4 publish it: a block of the topic itself, whose write is one overwrite from the shadow
    5 sweep the shadow away

Killed anywhere, the next rebuild goes on from there: a shadow has a position of its own. Readers
see the old table until the one commit of 4. A Reload is written whole in one commit anyway.

What makes deleting a shadow safe: its name is made up for it, with a token that no other has, and
the store holds that name before the first file is there and until the last one is gone. So nobody's
table is ever taken for a shadow, and a sweep that comes late finds nothing under the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from tidegate.crashpoint import crashpoint
from tidegate.errors import ClaimLost, LakeError, MutexError, WrongUse
from tidegate.model.execution import NOTHING_TO_DO, Execution, ExecutionState
from tidegate.model.flow import Flow, Operation
from tidegate.model.position import GREATEST, START, Block, Offset, Position, before, rfc3339
from tidegate.ports.kinds import Executes, Report, Watcher
from tidegate.ports.outside import Holders, Runtime
from tidegate.ports.store import Shadow, Store
from tidegate.sql.editing import redirected
from tidegate.sql.reading import pointed_at
from tidegate.tables.block_finder import Lake
from tidegate.tables.definition import (
    REBUILD,
    Processor,
    TableDefinition,
    TopicName,
    as_table,
)
from tidegate.tables.graph import LineageCycle, downstream, order
from tidegate.tables.plan import Limits, with_limits
from tidegate.tables.planner import TablePlanner

ANEW = "anew"
"""Told to an execution that writes a whole table: it may take other columns than it had."""
UPTO = "upto"
"""Told to one that publishes: up to where the table was built beside."""
_SHADOW = re.compile(r"\w+\.\w+__rebuild_[0-9a-f]{12}", re.ASCII)


def shadow_name(table: str, token: str) -> str:
    """Name the topic and the table of a rebuild; the token makes sure that nobody else does."""
    return f"{table}__rebuild_{token.replace('-', '')[:12]}"


def is_shadow(table: str) -> bool:
    """Tell whether a table's name is one that a rebuild made up."""
    return _SHADOW.fullmatch(table) is not None


def shadow_of(definition: TableDefinition, name: str) -> TableDefinition:
    """Give the definition that fills another table with the very rows of this one.

    Whatever names the table, a view that reads what it built before or a statement that tidies it,
    means the new one. How its files are laid out matters only once it is published, and so does
    the column that tells the topics of a table apart.
    """
    own, beside = definition.table, TopicName.parse(name).table
    return replace(
        definition,
        topic=name,
        rebuilds=definition.topic,
        unwaited=tuple(beside if table == own else table for table in definition.unwaited),
        views={view: redirected(text, own, beside) for view, text in definition.views.items()},
        before=pointed_at(definition.before, own, beside),
        after=pointed_at(definition.after, own, beside),
        log="",
        partition_by=(),
        cluster_by=(),
        tagged=False,
    )


def publication(offset: Offset, version: int, versions: Mapping[str, int]) -> Block:
    """Give the block that publishes a shadow: it moves the topic nowhere.

    A block that is open, and that nothing was written of, is finished by it: same number, same
    bounds, for its rows are in the shadow too.
    """
    block = offset.block or Block(
        last=offset.last,
        next=offset.last,
        rows=0,
        seq=offset.seq + 1,
        full=offset.full,
        complete_to=offset.complete_to,
        definition_version=version,
    )
    return replace(block, definition_version=version, versions=versions, processor=REBUILD)


def made_stale(definitions: Mapping[str, TableDefinition], topic: str, at: int) -> dict[str, str]:
    """Say of each topic that is built from this one, near or far, that it no longer agrees."""
    readers = downstream(definitions, {topic}) - {topic} if topic in definitions else set()
    return {reader: _stale(definitions[reader], topic, at) for reader in readers}


def _stale(reader: TableDefinition, topic: str, at: int) -> str:
    reload = reader.processor is Processor.RELOAD
    mends = "its next run mends it" if reload else f"mend it: tidegate rebuild {reader.topic}+"
    return f"stale: {topic} was rebuilt at {rfc3339(at)}; {mends}"


class Shadows:
    """Finds the shadow of a topic or begins one, and sweeps away those that are done with."""

    def __init__(self, store: Store, lake: Lake, holders: Holders, runtime: Runtime) -> None:
        self._store = store
        self._lake = lake
        self._holders = holders
        self._runtime = runtime

    def of(self, definition: TableDefinition, real: Offset) -> Shadow:
        """Give the shadow to go on with; raises MutexError while another process builds it."""
        found = self._store.rebuilds.of(definition.topic)
        if found is not None and self._goes_on(found, definition, real):
            return found
        if found is not None:
            held = found.offset
            if held.hostid and self._holders.lives(held.hostid):
                raise MutexError(found.topic, held.hostid, rfc3339(held.claimed_at or 0))
            self._store.rebuilds.abandon(found.topic, self._runtime.now())
        self.sweep()
        name = shadow_name(definition.table, self._runtime.uuid())
        self._store.rebuilds.begin(shadow_of(definition, name), self._runtime.now())
        crashpoint("rebuild.after_begin")
        begun = self._store.rebuilds.of(definition.topic)
        assert begun is not None
        return begun

    def _goes_on(self, shadow: Shadow, definition: TableDefinition, real: Offset) -> bool:
        """Tell whether a shadow is what would be built now, and is still there."""
        if shadow_of(definition, shadow.topic) != shadow.definition:
            return False
        if shadow.offset.stale != real.stale:
            # Something that it reads was rebuilt after it was begun.
            return False
        recorded = self._lake.recorded(as_table(shadow.definition).table, shadow.topic).seq
        block = shadow.offset.block
        return recorded == shadow.offset.seq or (block is not None and recorded == block.seq)

    def sweep(self) -> None:
        """Delete what was published or abandoned: the files, then what the store knows."""
        for shadow in self._store.rebuilds.abandoned():
            try:
                self._lake.drop(shadow)
            except LakeError:
                # It stays in the store, and the next sweep tries again.
                continue
            crashpoint("rebuild.after_drop")
            self._store.rebuilds.forget(shadow)


class Rebuilder:
    """One rebuild by hand, of topics in the order of dependence."""

    def __init__(
        self,
        definitions: Mapping[str, TableDefinition],
        store: Store,
        lake: Lake,
        shadows: Shadows,
        executor: Executes,
        planner: Callable[[], TablePlanner],
        runtime: Runtime,
        watcher: Watcher,
    ) -> None:
        self._definitions = definitions
        self._store = store
        self._lake = lake
        self._shadows = shadows
        self._executor = executor
        self._planner = planner
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

    def _in_order(self) -> list[TableDefinition]:
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

    def _rebuilt(self, definition: TableDefinition) -> bool:
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
            applied = self._store.definitions.applied(topic)
            assert applied is not None, "it was applied before the rebuild began"
            definition = as_table(applied.definition)
            real = self._store.offsets.get(topic) or Offset(topic, START)
            if self._is_written(definition, real):
                # It has only to be committed; then see whether that is what is wanted now.
                if not self._publish(definition.flow, real.last):
                    return False
                if real.processor == REBUILD and self._version(topic) == applied.version:
                    return True
                continue
            upto = real.block.next if real.block is not None else real.last
            if upto == START:
                self._report.not_due[topic] = "nothing of it is built yet: `tidegate run` builds it"
                return True
            shadow = self._shadows.of(definition, real)
            if not self._build(shadow, upto) or not self._publish(definition.flow, upto):
                return False
            if self._store.rebuilds.of(topic) is None:
                return True
            # The topic went on meanwhile, or had a block to finish: build on, and come again.

    def _is_written(self, definition: TableDefinition, real: Offset) -> bool:
        if real.block is None:
            return False
        recorded = self._lake.recorded(definition.table, definition.topic)
        return recorded.seq >= real.block.seq

    def _version(self, topic: str) -> int | None:
        offset = self._store.offsets.get(topic)
        return offset.definition_version if offset else None

    def _build(self, shadow: Shadow, upto: Position) -> bool:
        """Build the shadow on, up to a position; tell whether it is there."""
        beside, at = as_table(shadow.definition), shadow.offset
        base = (beside.base, beside.base_pos, beside.base_id)
        ahead = self._lake.ahead(*base, at.last).rows
        while at.block is not None or at.seq == 0 or at.last < upto:
            # The first block is made even without rows: a table has columns all the same.
            limits = Limits(self._runtime.now(), upto, GREATEST, upto.pos, retry=at.seq == 0)
            declared = at.block is not None
            configuration = {} if declared else with_limits(limits)
            ended = self._execute(beside.flow, configuration, ahead=ahead)
            if ended.state is not ExecutionState.FINISHED:
                return False
            if ended.comment == NOTHING_TO_DO and not declared:
                return True
            at = self._store.offsets.get(shadow.topic) or at
        return True

    def _publish(self, flow: Flow, upto: Position) -> bool:
        ended = self._execute(flow, {UPTO: list(upto)}, operation=Operation.PUBLISH)
        return ended.state is ExecutionState.FINISHED

    def _execute(
        self,
        flow: Flow,
        configuration: Mapping[str, Any],
        *,
        operation: Operation = Operation.BUILD,
        ahead: int = 0,
    ) -> Execution:
        execution = self._executor.assign(flow, operation=operation, configuration=configuration)
        self._watcher.started(flow.id, ahead)
        return self._ended(self._executor.execute(execution))

    def _ended(self, execution: Execution) -> Execution:
        self._report.executions.append(execution)
        self._watcher.ended(execution)
        return execution

    def _reload(self, definition: TableDefinition) -> bool:
        """Run a Reload whether it is due or not, and let its table take other columns."""
        topic = definition.topic
        offset = self._store.offsets.get(topic)
        if offset is not None and offset.block is not None:
            ended = self._execute(definition.flow, {ANEW: True})
            if ended.state is not ExecutionState.FINISHED:
                return False
        # Looked at only now: what it reads may have been rebuilt a moment ago.
        plan = self._planner().plan(eager=True)
        verdict = plan.verdicts[topic]
        if not all(plan.tables[name].exists for name in definition.depends_on):
            self._report.not_due[topic] = verdict.why
            return False
        at = verdict.complete_to
        limits = verdict.limits or Limits(plan.now, before(at), at, at)
        configuration = {**with_limits(limits), ANEW: True}
        return self._execute(definition.flow, configuration).state is ExecutionState.FINISHED
