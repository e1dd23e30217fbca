"""Table care after a committed block, in the table's own lane and as an execution of its own."""

from __future__ import annotations

from tidegate.errors import ClaimLost, LakeError, MutexError
from tidegate.model.execution import Execution, OffsetState
from tidegate.model.lineage import TopicName
from tidegate.ports import Caretaker, Runtime, Store
from tidegate.services.assigning import assign
from tidegate.services.executor import Executor

_TIDY = (OffsetState.DONE, OffsetState.NOJOBS)
"""The states of a topic that nobody works on and nothing is wrong with."""


class Care:
    """Has a table compacted and vacuumed when its log says that it is time."""

    def __init__(
        self, store: Store, caretaker: Caretaker, executor: Executor, runtime: Runtime
    ) -> None:
        self._store = store
        self._caretaker = caretaker
        self._executor = executor
        self._runtime = runtime

    def after_block(self, topic: str) -> Execution | None:
        """Look after the table that a block was loaded into; None when there was no need."""
        offset, table = self._store.offsets.get(topic), TopicName.parse(topic).table
        if offset is None or offset.state not in _TIDY or offset.block is not None:
            return None
        try:
            chores = self._caretaker.chores(table, offset)
        except LakeError:
            # Whoever reads the table next will say so, and it is no fault of this block.
            return None
        if not chores:
            return None
        execution = assign(self._store, self._runtime, self._executor.hostid, topic, kind="care")
        try:
            return self._executor.tend(
                execution, offset, lambda: self._caretaker.run(table, chores, self._pins(table))
            )
        except (MutexError, ClaimLost):
            # Somebody else works on the table: the next block is early enough.
            return None

    def _pins(self, table: str) -> list[int]:
        """Give the versions of a table that open blocks, of whatever topic, were declared over."""
        blocks = (offset.block for offset in self._store.offsets.all().values())
        return [block.versions[table] for block in blocks if block and table in block.versions]
