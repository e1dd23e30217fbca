"""The Runner of tables: which block, by what it is loaded, and what the commit is to write of it.

    build     the next rows of the base (a Step), or the whole table anew (a Reload)
    publish   what was built beside, in the place of the table
    maintain  small files put together, old ones deleted; the topic stays where it is

What needs Spark stands behind `Loads` and `Caretaker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tidegate.crashpoint import crashpoint
from tidegate.errors import FlowFailed, LakeError, TopicStopped
from tidegate.model.entities import MOST_WAITING, FailedRow
from tidegate.model.execution import Counts, Execution, Outcome, Work
from tidegate.model.flow import Kind, Operation
from tidegate.model.messages import Phase
from tidegate.model.position import Block, Position
from tidegate.model.records import MadeStale, Mended, Record, TookPlace, Vacuumed
from tidegate.ports.kinds import Checkpoint, Nothing
from tidegate.ports.outside import Runtime
from tidegate.ports.store import Applied, Claimed, Shadow, Store
from tidegate.tables.block_finder import BlockFinder, Lake, require_known
from tidegate.tables.care import Caretaker, is_tidy
from tidegate.tables.definition import REBUILD, Processor, TableDefinition, as_table
from tidegate.tables.plan import limits_of
from tidegate.tables.rebuild import ANEW, UPTO, made_stale, publication, shadow_of


@dataclass(frozen=True)
class Load:
    """One block of a topic on its way into its table."""

    execution: Execution
    definition: TableDefinition
    block: Block
    pinned: bool = False
    """An earlier execution died over this block: read the versions that it declared."""
    waiting: tuple[FailedRow, ...] = ()
    """Rows that failed before, to be tried again with this block."""
    columns: Mapping[str, str] | None = None
    """The columns that the topic gave last, with their types."""
    beside: str = ""
    """The table that was built beside the topic's own, to be published in its place."""
    anew: bool = False
    """The whole table is written anew, and may take other columns than it had."""


class Loads(Protocol):
    """Steps 4 and 5 for a block: reads its rows, and writes them exactly once."""

    def run(self, load: Load) -> Outcome: ...

    def interrupt(self, execution_id: str) -> None: ...


class TableRunner:
    """Implements `ports.Runner`."""

    def __init__(
        self,
        store: Store,
        lake: Lake,
        loader: Loads,
        publisher: Loads,
        caretaker: Caretaker,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._lake = lake
        self._finder = BlockFinder(lake, runtime)
        self._loader = loader
        self._publisher = publisher
        self._caretaker = caretaker
        self._runtime = runtime

    def declare(self, claimed: Claimed) -> Block | Nothing:
        """3b. Find the block that the plan allows, or the one that publishes what was built."""
        assert claimed.applied is not None, "the executor asks for a flow that is defined"
        if claimed.execution.operation is Operation.PUBLISH:
            return self._publication(claimed, claimed.applied)
        limits = limits_of(claimed.execution.configuration)
        definition, version = as_table(claimed.applied.definition), claimed.applied.version
        found = self._finder.find(definition, version, claimed.offset, limits)
        return found or Nothing(limits.complete_to if limits else 0)

    def run(self, work: Work, checkpoint: Checkpoint) -> Outcome:  # noqa: ARG002  (one block each)
        """4 and 5. Load the block, publish what was built beside, or tidy the table."""
        if work.execution.operation is Operation.MAINTAIN:
            return self._maintain(work)
        outcome, failed = self._publish(work) if _publishes(work) else self._build(work)
        streams = streams_of(as_table(work.definition), work.block, outcome.rows, failed)
        return replace(outcome, streams=streams)

    def follow_up(self, ended: Execution) -> Operation | None:
        """Look after the table once a block is in it."""
        offset = self._store.offsets.get(ended.topic)
        if offset is None or not is_tidy(offset):
            return None
        try:
            chores = self._caretaker.chores(ended.lane, offset)
        except LakeError:
            # Whoever reads the table next will say so, and it is no fault of this block.
            return None
        return Operation.MAINTAIN if chores else None

    def interrupt(self, execution_id: str) -> None:
        self._loader.interrupt(execution_id)
        self._publisher.interrupt(execution_id)

    def _build(self, work: Work) -> tuple[Outcome, int]:
        definition, topic = as_table(work.definition), work.execution.topic
        anew = bool(work.execution.configuration.get(ANEW))
        load = Load(
            work.execution,
            definition,
            work.block,
            pinned=work.died,
            waiting=tuple(self._store.failures.waiting(topic, MOST_WAITING)),
            columns=work.offset.columns,
            anew=anew,
        )
        outcome = self._loader.run(load)
        failed = self._store.failures.pending(topic, work.block.seq)
        if definition.processor is not Processor.RELOAD:
            return outcome, failed
        written = self._written_whole(work, work.offset.stale, makes_stale=anew)
        return replace(outcome, records=(*outcome.records, *written)), failed

    def _publish(self, work: Work) -> tuple[Outcome, int]:
        definition, topic = as_table(work.definition), work.execution.topic
        shadow = self._store.rebuilds.of(topic)
        if shadow is None or as_table(shadow.definition).table not in work.block.versions:
            raise TopicStopped(
                f"what was to take the place of {definition.table} is gone, or was begun anew; go"
                f" on with: tidegate rebuild {topic}"
            )
        crashpoint("rebuild.before_publish")
        beside = as_table(shadow.definition).table
        outcome = self._publisher.run(Load(work.execution, definition, work.block, beside=beside))
        crashpoint("rebuild.after_publish")
        failed = sum(self._store.failures.counts().get(shadow.topic, {}).values())
        written = self._written_whole(work, shadow.offset.stale, makes_stale=True)
        records = (*outcome.records, *written, TookPlace(shadow.topic))
        return replace(outcome, records=records), failed

    def _written_whole(self, work: Work, stale: str, *, makes_stale: bool) -> list[Record]:
        """Say what a table that was written as a whole means to it and to those that read it."""
        records: list[Record] = [Mended(stale)] if stale else []
        if makes_stale:
            topic = work.execution.topic
            records.append(MadeStale(made_stale(self._definitions(), topic, self._runtime.now())))
        return records

    def _definitions(self) -> Mapping[str, TableDefinition]:
        current = self._store.definitions.current(Kind.TABLE)
        return {name: as_table(applied.definition) for name, applied in current.items()}

    def _publication(self, claimed: Claimed, applied: Applied) -> Block | Nothing:
        """Find the block that publishes; where the topic stands elsewhere by now, none.

        What is in the table already, of this kind or that, has only to be committed.
        """
        definition, offset = as_table(applied.definition), claimed.offset
        recorded = self._lake.recorded(definition.table, definition.topic)
        if offset.block is not None and recorded.seq >= offset.block.seq:
            return offset.block
        require_known(definition, offset, recorded)
        upto = Position(*claimed.execution.configuration[UPTO])
        shadow = self._store.rebuilds.of(definition.topic)
        stands = offset.block.next if offset.block else offset.last
        if shadow is not None and stands == upto and _is_built_from(shadow, definition):
            table = as_table(shadow.definition).table
            versions = {**shadow.offset.versions, **self._lake.versions([table])}
            return publication(offset, applied.version, versions)
        if offset.block is None:
            return Nothing(offset.complete_to)
        raise FlowFailed(
            f"{definition.topic} went on while it was rebuilt; the next `tidegate rebuild"
            f" {definition.topic}` goes on from here"
        )

    def _maintain(self, work: Work) -> Outcome:
        table = as_table(work.definition).table
        try:
            chores = self._caretaker.chores(table, work.offset)
            care = self._caretaker.run(table, chores, self._pins(table))
        except Exception as error:  # noqa: BLE001  (a table that is not tidy is still right)
            return Outcome(0, f"table care failed: {error}")
        crashpoint("care.before_end")
        return Outcome(0, care.note, records=(Vacuumed(),) if care.tried_vacuum else ())

    def _pins(self, table: str) -> Sequence[int]:
        """Give the versions of a table that open blocks, of whatever flow, were declared over."""
        blocks = (offset.block for offset in self._store.offsets.all().values())
        return [block.versions[table] for block in blocks if block and table in block.versions]


def streams_of(
    definition: TableDefinition, block: Block, rows: int, failed: int
) -> Sequence[Counts]:
    """Count what each phase took in, gave out and failed.

    Spark reads, transforms and loads a block in one pass, so the four streams begin and end
    together; what differs is what goes in and what comes out:

        data-extract         the rows of the block, from the base table
        structure-transform  the rows that the views make of them
        data-transform       of those, the rows that pass the checks; the others failed
        data-load            the rows that are in the table
    """
    made = rows + failed
    views = ", ".join(definition.transforms)
    # A Reload reads whole tables, which nobody counts.
    read = block.rows or made
    return (
        Counts(Phase.DATA_EXTRACT, definition.base, read, read),
        Counts(Phase.STRUCTURE_TRANSFORM, views, read, made),
        Counts(Phase.DATA_TRANSFORM, views, made, rows, failed),
        Counts(Phase.DATA_LOAD, definition.table, rows, rows),
    )


def _publishes(work: Work) -> bool:
    return work.block.processor == REBUILD


def _is_built_from(shadow: Shadow, definition: TableDefinition) -> bool:
    """Tell whether what was built beside is still what the definition would build."""
    return shadow_of(definition, shadow.topic) == shadow.definition
