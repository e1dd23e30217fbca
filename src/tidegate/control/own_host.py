"""Frees what processes of this host held that have ended: nobody on another host can see that.

The leader may be anywhere, and frees what the dead of other hosts held only where the storage lets
one commit win. So every worker looks around on its own host, when it starts and with each beat.
"""

from __future__ import annotations

from collections.abc import Collection

from tidegate.ports.outside import Holders, Runtime
from tidegate.ports.store import Store


class OwnHost:
    """Knows which processes of this host have ended."""

    def __init__(self, store: Store, holders: Holders, runtime: Runtime) -> None:
        self._store = store
        self._holders = holders
        self._runtime = runtime

    def free_dead(self) -> None:
        """Free what the dead of this host hold, and end what they ran as lost."""
        dead = self._ended(self._store.blocks.holders())
        if dead:
            self._store.blocks.let_go(dead, self._runtime.now())

    def dead(self) -> frozenset[str]:
        """Name the processes of this host that ended, and still stand in the store."""
        workers = {one.process for one in self._store.instances.all() if one.ours and one.lives}
        return self._ended({*workers, *self._store.blocks.holders()})

    def _ended(self, processes: Collection[str]) -> frozenset[str]:
        return frozenset(process for process in processes if not self._holders.lives(process))
