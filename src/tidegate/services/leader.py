"""The leader's loop: who is dead, what is due, who gets it. Steps 1, 2 and 8 of a block.

Messages only make it faster: whatever they say is in the store, or comes again.

    hear ─▶ renew ─▶ rescue (1 to 4, 8) ─▶ plan (6) ─▶ assign (7) ─▶ trim (9) ─▶ wait
      ▲                                                                            │
      └── a tick, a commit, an instance turning idle, a command ◀──────────────────┘
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import replace

from tidegate.crashpoint import crashpoint
from tidegate.errors import LakeError
from tidegate.model.assignment import Assigned, Due, assign, new_execution
from tidegate.model.execution import Execution, Offset
from tidegate.model.facts import Facts
from tidegate.model.instance import EXTERNAL, TABLE, Instance
from tidegate.model.leadership import Lease
from tidegate.model.lineage import Definition, TopicName
from tidegate.model.messages import Assign, may_wait
from tidegate.model.outlook import Outlook
from tidegate.model.pace import Pace
from tidegate.model.plan import Verdict
from tidegate.ports import Bus, Delivery, Holders, Inbox, Looks, Runtime, Store
from tidegate.services.assigning import goes_on_from
from tidegate.services.elector import Elector
from tidegate.services.lookout import Lookout
from tidegate.services.post import Heard, Post
from tidegate.services.rescuer import Fleet, Rescuer

log = logging.getLogger(__name__)

TRIM_SECONDS = 60.0
"""Between two looks for what may be forgotten."""
BEATS_SECONDS = 0.05
"""How long a leader that hears nothing but heartbeats, again and again, lets more of them come."""


class Leader:
    """What one leader knows and does in one term."""

    def __init__(
        self,
        term: int,
        elector: Elector,
        store: Store,
        bus: Bus,
        lake: Looks,
        holders: Holders,
        runtime: Runtime,
        pace: Pace,
    ) -> None:
        self._term = term
        self._elector = elector
        self._store = store
        self._bus = bus
        self._runtime = runtime
        self._pace = pace
        self._post = Post(store, runtime)
        self._rescuer = Rescuer(store, holders, runtime, pace)
        self._lookout = Lookout(None, store, lake, holders, runtime)
        self._refusals: dict[str, int | None] = {}
        """Who rejected an execution, and when it was last heard before that."""
        # Seconds that never jump: a clock set back must not let it wait for as long.
        self._next_turn = 0.0
        self._next_trim = 0.0
        self._beats_heard = 0.0

    def turn(self, inbox: Inbox) -> None:
        """Go once through the leader's steps, as soon as there is a reason to; raises Deposed."""
        deliveries = inbox.receive(max(0.0, self._next_turn - self._runtime.monotonic()))
        later = [one for one in deliveries if may_wait(one.body)]
        heard = self._hear([one for one in deliveries if not may_wait(one.body)])
        if heard.stirring or self._runtime.monotonic() >= self._next_turn:
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
        if self._hear(later).stirring:
            self._next_turn = 0.0
        # Last, so that nobody waits for it to be written; what is not done comes again.
        inbox.done(deliveries)

    def _hear(self, deliveries: Sequence[Delivery]) -> Heard:
        heard = self._post.handle(deliveries, self._term)
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
        """7, for foreign executions, which wait in the store for an instance."""
        queued = {
            one.id: one for one in fleet.open if one.flow_kind == EXTERNAL and not one.etl_worker
        }
        if not queued:
            return fleet
        wanted = [Due(one.id, EXTERNAL, one.id, one.tags) for one in queued.values()]
        now = self._runtime.now()
        given = [
            replace(
                queued[one.due.flow], etl_worker=one.instance.id, assigned_at=now, term=self._term
            )
            for one in self._choose(wanted, fleet)
        ]
        taken = self._store.executions.hand_out(given, self._term)
        self._bus.publish(self._commands(taken))
        return replace(fleet, open=[*fleet.open, *taken])

    def _assign_due(self, fleet: Fleet, now: int) -> None:
        """6 and 7, for tables: plan, and give what is due to idle instances."""
        outlook = self._outlook(now)
        if outlook is None or not outlook.due:
            return
        facts = outlook.facts
        # Who has waited longest comes first: else a long backlog would keep the others out.
        fair = sorted(outlook.net.in_order(outlook.due), key=lambda one: _last_run(facts, one))
        chosen = {one.due.flow: one.instance for one in self._choose(map(_wanted, fair), fleet)}
        made = [
            self._execution(verdict, facts.offsets.get(topic), chosen[topic])
            for topic, verdict in outlook.verdicts(chosen).items()
        ]
        commands = self._commands(made)
        enclosed = self._bus.enclose(commands)
        crashpoint("leader.before_assign")
        # 2. Stored before it is told, or with it: whoever hears of it finds it.
        self._store.executions.assign_all(made, self._term, enclosed, self._runtime.now())
        self._bus.announce(commands)

    def _outlook(self, now: int) -> Outlook | None:
        """6. Plan over what is applied now, by the store's clock: whoever leads, it is the same."""
        self._lookout.renew(now)
        try:
            outlook = self._lookout.outlook()
        except LakeError as error:
            log.warning("%s", error)
            return None
        self._store.offsets.see(self._lookout.landed(outlook.facts), self._runtime.now())
        return outlook

    def _choose(self, wanted: Iterable[Due], fleet: Fleet) -> list[Assigned]:
        at_work = [execution for execution in fleet.open if execution.etl_worker]
        limit = self._pace.max_parallel
        return assign(
            wanted,
            [one for one in fleet.instances.values() if not self._refuses(one)],
            {execution.etl_worker for execution in at_work},
            {TopicName.parse(one.topic).table for one in at_work if one.topic},
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

    def _execution(self, verdict: Verdict, offset: Offset | None, instance: Instance) -> Execution:
        return new_execution(
            self._runtime.uuid(),
            verdict.topic,
            self._runtime.now(),
            earlier=goes_on_from(self._store, verdict.topic, offset),
            limits=verdict.limits,
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
        if self._runtime.monotonic() < self._next_trim:
            return
        self._next_trim = self._runtime.monotonic() + TRIM_SECONDS
        self._bus.trim(self._runtime.now() - self._pace.retention)
        self._store.instances.trim(lease.now - self._pace.forget_after, self._term)


def _last_run(facts: Facts, definition: Definition) -> int:
    offset = facts.offsets.get(definition.topic)
    return (offset.run or 0) if offset else 0


def _wanted(definition: Definition) -> Due:
    return Due(definition.topic, TABLE, definition.table, definition.worker_tags)
