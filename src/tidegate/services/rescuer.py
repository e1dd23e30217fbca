"""Takes work away from those who no longer do it: the dead, the deaf and the idle.

Leader steps 1 to 4 and 8. Silence is judged by the store's clock at receipt, and counted from no
earlier than the time from which this leader has listened without a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.instance import EXTERNAL, Instance, overdue
from tidegate.model.leadership import Lease
from tidegate.model.messages import InstanceState
from tidegate.model.pace import Pace
from tidegate.ports import Holders, Runtime, Store

_CONTRADICTIONS = 2
"""So many heartbeats in a row say idle of an instance that should be at work, and it is not."""


class Rescuer:
    """Watches over the instances for as long as one term lasts."""

    def __init__(self, store: Store, holders: Holders, runtime: Runtime, pace: Pace) -> None:
        self._store = store
        self._holders = holders
        self._runtime = runtime
        self._pace = pace
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

    def turn(self, lease: Lease) -> None:
        """Take away what is not being done."""
        self._mind_the_gap(lease)
        instances = self._store.instances.all()
        gone = [one for one in instances if one.lives and self._is_gone(one)]
        if gone:
            self._bury(gone, "lost: its worker is gone", lease.term)
        left = [one for one in instances if one not in gone]
        silent = overdue(left, lease.now, self._listening_since, self._pace.dead_after)
        if silent:
            silence = self._pace.dead_after / 1000
            self._bury(silent, f"lost: its worker was not heard for {silence:g} s", lease.term)
        lost = self._undone(self._store.executions.open(), lease.now)
        self._store.executions.lose(lost, lease.term, self._runtime.now())

    def _is_gone(self, instance: Instance) -> bool:
        """Tell whether its process has ended, where that can be seen without waiting."""
        return instance.ours and not self._holders.lives(instance.process)

    def _mind_the_gap(self, lease: Lease) -> None:
        """Blame a silence on nobody while this leader itself did not turn."""
        if lease.now - self._last_turn > self._pace.dead_after // 2:
            self._listening_since = lease.now
        self._listening_since = max(self._listening_since, lease.elected_at)
        self._last_turn = lease.now

    def _bury(self, dead: Sequence[Instance], why: str, term: int) -> None:
        """1 to 3. Unload the dead; a process of this machine that only hangs is ended first."""
        processes = {instance.process for instance in dead if instance.ours}
        for process in processes:
            self._holders.end(process)
        ended = frozenset(p for p in processes if not self._holders.lives(p))
        self._store.instances.bury([instance.id for instance in dead], ended, why, term)

    def _undone(self, open: Sequence[Execution], now: int) -> dict[str, str]:
        """4 and 8. Find what was never accepted, and what its own instance knows nothing of."""
        lost: dict[str, str] = {}
        waiting = {
            one.id for one in open if one.state is ExecutionState.ASSIGNED and one.etl_worker
        }
        known = self._assigned_since
        self._assigned_since = {id: known.get(id, now) for id in waiting}
        for execution in open:
            if execution.flow_kind == EXTERNAL and execution.cancel_requested_at is not None:
                # The protocol has no word for it that a foreign worker would know.
                lost[execution.id] = "cancelled by hand"
            if not execution.etl_worker:
                continue
            if execution.id in waiting:
                waited = now - self._assigned_since[execution.id]
                if waited > self._pace.accept_within:
                    lost[execution.id] = f"lost: not accepted within {waited / 1000:g} s"
            elif self._contradicts(execution):
                lost[execution.id] = "lost: its instance says that it is idle"
        return lost

    def _contradicts(self, execution: Execution) -> bool:
        worker = execution.etl_worker
        if self._at_work.get(worker) != execution.id:
            # What it said before it began is no contradiction.
            self._at_work[worker], self._idle_beats[worker] = execution.id, 0
        return self._idle_beats[worker] >= _CONTRADICTIONS
