"""A candidate for leadership, and the leader while it is elected.

1. Ask whether a leader is established; if so, do nothing. 2. Announce candidacy. 3. The
compare-and-set of the term decides. 4. Elected: renew before every turn, abdicate when that fails.

Any number of processes may run one; the elected one leads. All that a leader writes carries its
term, so one that was stopped and goes on after its lease writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from tidegate.control.leader import Elector, Leader
from tidegate.control.lifecycle import Lifecycle
from tidegate.errors import Deposed, StoreError
from tidegate.model.flow import Kind
from tidegate.model.instances import Pace, Sharing
from tidegate.ports.kinds import Planner
from tidegate.ports.outside import Bus, Holders, Runtime
from tidegate.ports.store import Store

log = logging.getLogger(__name__)


class Manager:
    """Stands whenever nobody leads."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        planners: Callable[[], Mapping[Kind, Planner]],
        holders: Holders,
        runtime: Runtime,
        pace: Pace,
        life: Lifecycle,
        lake: Sharing,
    ) -> None:
        self._store = store
        self._bus = bus
        self._planners = planners
        """Makes those of a term: what a leader before has seen is not believed."""
        self._holders = holders
        self._runtime = runtime
        self._pace = pace
        self._life = life
        self._lake = lake
        self._elector = Elector(store.leadership, holders.me, pace.lease)
        self._wakes = runtime.mailbox()
        life.on_stop(lambda: self._wakes.put(None))

    def serve(self) -> None:
        """Stand for leadership, and lead, until told to stop."""
        while not self._life.stopping:
            try:
                term = self._elector.stand()
                if term is not None:
                    log.info("leads, term %d", term)
                    self._lead(term)
            except StoreError as error:
                log.warning("%s", error)
            if not self._life.stopping:
                self._wakes.receive(self._pace.loop / 1000)

    def _lead(self, term: int) -> None:
        inbox = self._bus.manager_inbox()
        leader = Leader(
            term,
            self._elector,
            self._store,
            self._bus,
            self._planners(),
            self._holders,
            self._runtime,
            self._pace,
            self._lake,
        )
        try:
            while not self._life.stopping:
                leader.turn(inbox)
        except Deposed as error:
            log.warning("leads no longer: %s", error)
        finally:
            inbox.close()
            if self._life.stopping:
                self._elector.resign(term)
