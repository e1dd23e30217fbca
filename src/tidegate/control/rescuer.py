"""Takes work away from those who no longer do it: the dead, the deaf and the idle.

Leader steps 1 to 4 and 8. Silence is judged by the store's clock at receipt, and counted from no
earlier than the time from which this leader has listened without a gap.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.instances import Instance, InstanceStatus, Lease, Pace, Sharing, overdue
from tidegate.model.messages import InstanceState
from tidegate.ports.outside import Holders, Runtime
from tidegate.ports.row_cache import RowCache
from tidegate.ports.store import Store

log = logging.getLogger(__name__)
_CONTRADICTIONS = 2
"""So many heartbeats in a row say idle of an instance that should be at work, and it is not."""

_BY_HAND = 9
"""So many times as long a run by hand may take to claim: it waits for what a dead one left."""


@dataclass(frozen=True)
class Fleet:
    """Who there is, and what is not ended yet."""

    instances: Mapping[str, Instance]
    open: Sequence[Execution]


class Rescuer:
    """Watches over the instances for as long as one term lasts."""

    def __init__(
        self, store: Store, holders: Holders, runtime: Runtime, pace: Pace, lake: Sharing
    ) -> None:
        self._store = store
        self._holders = holders
        self._runtime = runtime
        self._pace = pace
        self._lake = lake
        self._instances = RowCache(store.instances)
        self._listening_since = 0
        self._last_turn = 0
        self._assigned_since: dict[str, int] = {}
        """Since when this leader has seen an execution wait to be accepted: the store's time."""
        self._at_work: dict[str, str] = {}
        """The execution that each instance was last seen to have begun."""
        self._idle_beats: Counter[str] = Counter()
        """How often in a row it has called itself idle since."""

    def note(self, beats: Mapping[str, Sequence[InstanceState]]) -> None:
        """Remember who says of itself, again and again, that it does nothing."""
        for instance, states in beats.items():
            for state in states:
                idle = state is InstanceState.IDLE
                self._idle_beats[instance] = self._idle_beats[instance] + 1 if idle else 0

    def instances(self) -> Mapping[str, Instance]:
        """Give the instances as the store knows them now."""
        return self._instances.read()

    def turn(self, lease: Lease) -> Fleet:
        """Take away what is not being done, and give what is left."""
        self._mind_the_gap(lease)
        instances = self.instances()
        gone = self._gone(instances.values())
        if gone:
            self._unload(gone, "lost: its worker is gone", lease.term)
        left = (
            [one for one in instances.values() if one not in gone] if gone else instances.values()
        )
        silent = overdue(left, lease.now, self._listening_since, self._pace.dead_after)
        # And those that somebody else has passed over who got their lake.
        silent += [one for one in left if one.status is InstanceStatus.DEAD]
        if silent:
            silence = self._pace.dead_after / 1000
            self._unload(silent, f"lost: its worker was not heard for {silence:g} s", lease.term)
        open = self._store.executions.open()
        orphans = self._orphaned(open, instances)
        lost = self._undone(open, instances, lease.now)
        lost |= dict.fromkeys(orphans, "lost: its process is gone")
        if lost:
            ended = frozenset(orphans.values())
            self._store.executions.lose(lost, ended, lease.term, self._runtime.now())
            # A foreign one that was lost has a successor now.
            open = self._store.executions.open()
        return Fleet(self.instances() if gone or silent or lost else instances, open)

    def _gone(self, instances: Iterable[Instance]) -> list[Instance]:
        """Find those whose process has ended, where that can be seen without waiting."""
        living = [one for one in instances if one.lives and one.ours]
        ended = {p for p in {one.process for one in living} if not self._holders.lives(p)}
        return [one for one in living if one.process in ended] if ended else []

    def _mind_the_gap(self, lease: Lease) -> None:
        """Blame a silence on nobody while this leader itself did not turn."""
        # Between two turns without a reason lies a whole loop: that is no gap yet.
        if lease.now - self._last_turn > self._pace.loop + self._pace.dead_after // 2:
            self._listening_since = lease.now
        self._listening_since = max(self._listening_since, lease.elected_at)
        self._last_turn = lease.now

    def _unload(self, dead: Sequence[Instance], why: str, term: int) -> None:
        """1 to 3. Unload the dead; a process of this machine that only hangs is ended first.

        What they held is free where they are seen to have ended. Where the storage lets one commit
        win, silence is enough: the transaction's version and the conditional commit fence the rest.
        """
        processes = {instance.process for instance in dead if instance.ours}
        for process in processes:
            self._holders.end(process)
        ended = frozenset(
            p for p in processes if self._lake.one_commit_wins or not self._holders.lives(p)
        )
        self._store.executions.unload([instance.id for instance in dead], ended, why, term)
        for worker in sorted({instance.name or instance.id for instance in dead}):
            log.warning("worker %s: %s", worker, why)

    def _undone(
        self, open: Sequence[Execution], instances: Mapping[str, Instance], now: int
    ) -> dict[str, str]:
        """4 and 8. Find what was never accepted, and what its own instance knows nothing of."""
        lost: dict[str, str] = {}
        assigned = [one for one in open if one.state is ExecutionState.ASSIGNED]
        waiting = {one.id for one in assigned if one.etl_worker}
        known = self._assigned_since
        self._assigned_since = {id: known.get(id, now) for id in waiting}
        for execution in open:
            external = not execution.flow_kind.ends_in_store
            if external and execution.cancel_requested_at is not None:
                # The protocol has no word for it that a foreign worker would know.
                lost[execution.id] = "cancelled by hand"
            if execution.id in waiting:
                waited = now - self._assigned_since[execution.id]
                # A run by hand is no instance: nobody hears from it, and it may have its reasons.
                known_worker = execution.etl_worker in instances
                if waited > self._pace.accept_within * (1 if known_worker else _BY_HAND):
                    lost[execution.id] = f"lost: not accepted within {waited / 1000:g} s"
            elif execution.etl_worker in instances and (
                execution.flow_kind.takes_slot and self._contradicts(execution)
            ):
                lost[execution.id] = "lost: its instance says that it is idle"
        return lost

    def _orphaned(
        self, open: Sequence[Execution], instances: Mapping[str, Instance]
    ) -> dict[str, str]:
        """Find what nobody runs any more: by hand, or by a worker that left while it began.

        Give the process that ran each.
        """
        processes: dict[str, str] = {}
        for execution in open:
            worker = instances.get(execution.etl_worker)
            # A run by hand is no instance: its executions name the process itself.
            processes[execution.id] = worker.process if worker else execution.etl_worker
        named = {process for process in processes.values() if process}
        ended = {process for process in named if not self._holders.lives(process)}
        if self._lake.one_commit_wins:
            # One that went on for a moment after it was unloaded, in its own name.
            ours = [one for one in instances.values() if one.process in named]
            ended |= {one.process for one in ours} - {one.process for one in ours if one.lives}
        return {id: process for id, process in processes.items() if process in ended}

    def _contradicts(self, execution: Execution) -> bool:
        worker = execution.etl_worker
        if self._at_work.get(worker) != execution.id:
            # What it said before it began is no contradiction.
            self._at_work[worker], self._idle_beats[worker] = execution.id, 0
        return self._idle_beats[worker] >= _CONTRADICTIONS
