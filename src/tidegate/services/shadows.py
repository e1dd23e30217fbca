"""Shadows: the tables that are built beside others, from their first row to the last trace.

What makes deleting one safe: its name is made up for it, with a token that no other has, and the
store holds that name before the first file is there and until the last one is gone. So nobody's
table is ever taken for a shadow, and a sweep that comes late finds nothing under the name.
"""

from __future__ import annotations

from tidegate.crashpoint import crashpoint
from tidegate.errors import LakeError, MutexError
from tidegate.model.execution import Offset
from tidegate.model.lineage import Definition
from tidegate.model.position import rfc3339
from tidegate.model.rebuild import shadow_name, shadow_of
from tidegate.ports import Holders, Lake, Runtime, Shadow, Store


class Shadows:
    """Finds the shadow of a topic or begins one, and sweeps away those that are done with."""

    def __init__(self, store: Store, lake: Lake, holders: Holders, runtime: Runtime) -> None:
        self._store = store
        self._lake = lake
        self._holders = holders
        self._runtime = runtime

    def of(self, definition: Definition, real: Offset) -> Shadow:
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

    def _goes_on(self, shadow: Shadow, definition: Definition, real: Offset) -> bool:
        """Tell whether a shadow is what would be built now, and is still there."""
        if shadow_of(definition, shadow.topic) != shadow.definition:
            return False
        if shadow.offset.stale != real.stale:
            # Something that it reads was rebuilt after it was begun.
            return False
        recorded = self._lake.recorded(shadow.definition).seq
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
