"""The leader's loop: who is dead, what is due, who gets it. Steps 1, 2 and 8 of a block.

Messages only make it faster: whatever they say is in the store, or comes again.

    hear ─▶ renew ─▶ rescue (1 to 4, 8) ─▶ plan (6) ─▶ assign (7) ─▶ trim (9) ─▶ wait
      ▲                                                                            │
      └── a tick, a commit, an instance turning idle, a command ◀──────────────────┘
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace

from tidegate.control.message_handler import Handled, MessageHandler
from tidegate.control.rescuer import Fleet, Rescuer
from tidegate.crashpoint import crashpoint
from tidegate.errors import Deposed, LakeError
from tidegate.model.execution import Execution, new_execution
from tidegate.model.flow import Flow, Kind
from tidegate.model.instances import Assigned, Due, Instance, Lease, Pace, Sharing, assign
from tidegate.model.messages import Assign, may_wait
from tidegate.ports.kinds import Instruction, Planner
from tidegate.ports.outside import Bus, Holders, Inbox, Runtime
from tidegate.ports.store import Delivery, Leadership, Store

log = logging.getLogger(__name__)
TRIM_SECONDS = 60.0
"""Between two looks for what may be forgotten."""
HISTORY_SECONDS = 3600.0
"""Between two looks for history that is too old; while there is more, it goes bite by bite."""
BITE = 1_000
BEATS_SECONDS = 0.05
"""How long a leader that hears nothing but heartbeats, again and again, lets more of them come."""


class Elector:
    """One candidate."""

    def __init__(self, leadership: Leadership, me: str, lease: int) -> None:
        self._leadership = leadership
        self._me = me
        self._lease = lease

    def stand(self) -> int | None:
        """Try to become the leader; give the term if that succeeded."""
        # 1. Asked first, so that a candidate in a settled team writes nothing.
        if self._leadership.read().established(self._lease):
            return None
        # 2 and 3.
        return self._leadership.take(self._me, self._lease)

    def renew(self, term: int) -> Lease:
        """4. Keep the lease going; raises Deposed when it is no longer ours."""
        lease = self._leadership.renew(term, self._lease)
        if lease is None:
            raise Deposed(f"the lease of term {term} has run out")
        return lease

    def resign(self, term: int) -> None:
        self._leadership.resign(term)


class Leader:
    """What one leader knows and does in one term."""

    def __init__(
        self,
        term: int,
        elector: Elector,
        store: Store,
        bus: Bus,
        planners: Mapping[Kind, Planner],
        holders: Holders,
        runtime: Runtime,
        pace: Pace,
        lake: Sharing,
    ) -> None:
        self._term = term
        self._elector = elector
        self._store = store
        self._bus = bus
        self._runtime = runtime
        self._pace = pace
        self._handler = MessageHandler(store, runtime)
        self._rescuer = Rescuer(store, holders, runtime, pace, lake)
        self._planners = planners
        self._refusals: dict[str, int | None] = {}
        """Who rejected an execution, and when it was last heard before that."""
        # Seconds that never jump: a clock set back must not let it wait for as long.
        self._next_turn = 0.0
        self._next_trim = 0.0
        self._next_bite = 0.0
        self._beats_heard = 0.0

    def turn(self, inbox: Inbox) -> None:
        """Go once through the leader's steps, as soon as there is a reason to; raises Deposed."""
        deliveries = inbox.receive(max(0.0, self._next_turn - self._runtime.monotonic()))
        later = [one for one in deliveries if may_wait(one.body)]
        heard = self._hear([one for one in deliveries if not may_wait(one.body)])
        if heard.wakes_leader or self._runtime.monotonic() >= self._next_turn:
            self._next_turn = self._runtime.monotonic() + self._pace.loop / 1000
            # Who says that it is free is to be found so. One whose beat is lost beats again.
            wait(heard.writing)
            lease = self._elector.renew(self._term)
            # 1 to 4, and 8.
            fleet = self._rescuer.turn(lease)
            self._assign_due(self._assign_queued(fleet), lease.now)
            self._trim(lease)
        elif heard.beats and not heard.news and not later:
            self._gather_beats()
        # While the workers are at what they were given.
        if self._hear(later).wakes_leader:
            self._next_turn = 0.0
        # Last, so that nobody waits for it to be written; what is not done comes again.
        inbox.done(deliveries)

    def _hear(self, deliveries: Sequence[Delivery]) -> Handled:
        heard = self._handler.handle(deliveries, self._term)
        self._rescuer.note(heard.beats)
        if heard.refusals:
            known = self._rescuer.instances()
            for id in heard.refusals:
                self._refusals[id] = known[id].reported_at if id in known else None
        return heard

    def _gather_beats(self) -> None:
        """Let more come where they trickle: to write many down costs little more than one."""
        if self._runtime.monotonic() - self._beats_heard < BEATS_SECONDS:
            self._runtime.sleep(BEATS_SECONDS)
        self._beats_heard = self._runtime.monotonic()

    def _assign_queued(self, fleet: Fleet) -> Fleet:
        """7, for executions that wait in the store for an instance: those of foreign workers."""
        queued = {
            one.id: one
            for one in fleet.open
            if not one.flow_kind.ends_in_store and not one.etl_worker
        }
        if not queued:
            return fleet
        now = self._runtime.now()
        wanted = [
            Due(Flow(one.id, one.flow_kind, one.lane, one.tags), now) for one in queued.values()
        ]
        given = [
            replace(
                queued[one.due.flow.id],
                etl_worker=one.instance.id,
                assigned_at=now,
                term=self._term,
            )
            for one in self._choose(wanted, fleet)
        ]
        taken = self._store.executions.hand_out(given, self._term)
        self._bus.publish(self._commands(taken))
        return replace(fleet, open=[*fleet.open, *taken])

    def _assign_due(self, fleet: Fleet, now: int) -> None:
        """6 and 7: plan, kind by kind, and give what is due to idle instances."""
        due = [one for kind in self._planners for one in self._due_of(kind, now)]
        if not due:
            return
        # Who has waited longest comes first: else a long backlog would keep the others out.
        fair = sorted(due, key=lambda one: one.since)
        chosen = self._choose(fair, fleet)
        instances = {one.due.flow.id: one.instance for one in chosen}
        made = [
            self._execution(instruction, instances[instruction.flow.id])
            for kind, planner in self._planners.items()
            for instruction in planner.instruct(
                [one.due.flow.id for one in chosen if one.due.flow.kind is kind]
            )
        ]
        commands = self._commands(made)
        enclosed = self._bus.enclose(commands)
        crashpoint("leader.before_assign")
        # 2. Stored before it is told, or with it: whoever hears of it finds it.
        self._store.executions.assign_all(made, self._term, enclosed, self._runtime.now())
        self._bus.announce(commands)

    def _due_of(self, kind: Kind, now: int) -> Sequence[Due]:
        """6. Plan over what is applied now, by the store's clock: whoever leads, it is the same."""
        planner = self._planners[kind]
        try:
            due = planner.due(now)
        except LakeError as error:
            log.warning("%s", error)
            return ()
        planner.record_looks()
        return due

    def _choose(self, wanted: Iterable[Due], fleet: Fleet) -> list[Assigned]:
        given = [execution for execution in fleet.open if execution.etl_worker]
        at_work = [execution for execution in given if execution.flow_kind.takes_slot]
        limit = self._pace.max_parallel
        return assign(
            wanted,
            [one for one in fleet.instances.values() if not self._refuses(one)],
            {execution.etl_worker for execution in at_work},
            {execution.lane for execution in given},
            None if limit is None else max(0, limit - len(at_work)),
        )

    def _refuses(self, instance: Instance) -> bool:
        """Tell whether an instance that rejected an execution was not heard again since."""
        if instance.id not in self._refusals:
            return False
        if self._refusals[instance.id] == instance.reported_at:
            return True
        del self._refusals[instance.id]
        return False

    def _execution(self, instruction: Instruction, instance: Instance) -> Execution:
        flow = instruction.flow
        goes_on = instruction.goes_on
        return new_execution(
            self._runtime.uuid(),
            flow,
            self._runtime.now(),
            earlier=self._store.executions.list(flow=flow.id, limit=1) if goes_on else (),
            configuration=instruction.configuration,
            worker=instance.id,
            term=self._term,
        )

    def _commands(self, executions: Sequence[Execution]) -> Sequence[Assign]:
        now = self._runtime.now()
        return [
            Assign(one.etl_worker, one.id, one.configuration, now, self._term) for one in executions
        ]

    def _trim(self, lease: Lease) -> None:
        """9. Forget what is too old to matter."""
        if self._runtime.monotonic() >= self._next_bite:
            more = self._store.retention.trim(lease.now - self._pace.keep, self._term, BITE)
            pause = self._pace.loop / 1000 if more else HISTORY_SECONDS
            self._next_bite = self._runtime.monotonic() + pause
        if self._runtime.monotonic() < self._next_trim:
            return
        self._next_trim = self._runtime.monotonic() + TRIM_SECONDS
        self._bus.trim(self._runtime.now() - self._pace.retention)
        self._store.instances.trim(lease.now - self._pace.forget_after, self._term)
