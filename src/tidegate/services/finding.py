"""Step 3b of a block: finds it, once the table's own count of blocks agrees with the store's."""

from __future__ import annotations

from tidegate.errors import TopicStopped
from tidegate.model.blocks import Found
from tidegate.model.execution import Block, Limits, Offset
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import Position
from tidegate.ports import Lake, Recorded, Runtime


class Finder:
    """Turns what a plan allows into the block that is taken."""

    def __init__(self, lake: Lake, runtime: Runtime) -> None:
        self._lake = lake
        self._runtime = runtime

    def find(
        self, definition: Definition, version: int, offset: Offset, limits: Limits | None
    ) -> Block | None:
        """Find the block; None when there is nothing to take."""
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
        require_known(definition, offset, recorded)
        if recorded.seq < offset.seq and definition.processor is Processor.STEP:
            raise TopicStopped(
                f"{table} holds {recorded.seq} blocks of {topic}, and the store knows of"
                f" {offset.seq}: the table was deleted or rolled back; put it back, or build it"
                f" anew: tidegate rebuild {topic}"
            )


def require_known(definition: Definition, offset: Offset, recorded: Recorded) -> None:
    """Refuse to go on where the table holds blocks that the store does not know of."""
    topic, table = definition.topic, definition.table
    if recorded.seq > offset.seq:
        where = f" up to {recorded.next}" if recorded.next else ""
        start = recorded.next or "POS,ID"
        raise TopicStopped(
            f"{table} holds {recorded.seq} blocks of {topic}{where}, and the store knows of"
            f" {offset.seq}; to go on behind them: tidegate offsets set {topic} --last"
            f" {str(start).strip('()').replace(' ', '')} --force"
        )
