"""A worker process: its slots, what they are told, and that they live.

One thread for each thing that may wait, and mailboxes between them:

    post      waits for ems.control               ─┐
    minder    waits for the store, once a beat    ─┼─▶ the worker: who is busy, heartbeats, the end
    slot × N  wait for Spark and the commit       ─┘        │
       ▲                                                    │
       └──────────────── one execution at a time ◀──────────┘

The worker itself waits for nothing but its mailbox, so that heartbeats come whatever else hangs.
What is lost on the bus is found in the store by the minder: the row is the command.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from tidegate.control.executor import Executor, Interruption
from tidegate.control.lifecycle import Lifecycle
from tidegate.control.own_host import OwnHost
from tidegate.control.slot import Assignment, Assignments, BusReporter
from tidegate.errors import Malformed, StoreError, TidegateError, WrongUse
from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.instances import Instance, InstanceStatus, Pace, Sharing
from tidegate.model.messages import (
    Assign,
    Cancel,
    Heartbeat,
    InstanceState,
    Message,
    Shutdown,
    parse,
)
from tidegate.ports.kinds import Instruction
from tidegate.ports.outside import Bus, Holders, Inbox, Mailbox, Runtime
from tidegate.ports.store import Delivery, Store

log = logging.getLogger(__name__)
LAST_WORD_SECONDS = 10.0
"""How long a worker that leaves waits for the store to hear of it."""


@dataclass(frozen=True)
class Command:
    """A command, and how it came."""

    message: Message
    delivery: Delivery


@dataclass(frozen=True)
class SlotFree:
    """A slot has done what it was told."""

    instance: str
    reported: bool
    """Its end was reported, which says as well that the slot is free."""


@dataclass(frozen=True)
class Rows:
    """What the store says of this process's instances: their open executions."""

    open: Sequence[Execution]


class Signal(Enum):
    """What needs no more than to be said."""

    STOP = auto()  # to the worker: end; to the minder: look now
    LEAVE = auto()  # to slots and minder: no more of this; from the minder: it is done


@dataclass
class Slot:
    """One instance: a thread that runs one execution at a time."""

    id: str
    mailbox: Mailbox[Assignment | Signal]
    execution_id: str | None = None
    seen: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """The executions that it was given last; one that is told of twice is run once."""
    owes_word: bool = False
    """Somebody heard that it is busy, and is to hear when it no longer is."""

    @property
    def state(self) -> InstanceState:
        return InstanceState.BUSY if self.execution_id else InstanceState.IDLE


@dataclass(frozen=True)
class Identity:
    """What a worker process says of itself when it registers."""

    name: str
    host: str
    pid: int
    process: str
    tags: tuple[str, ...] = ()


class Worker:
    """Hosts instances and runs what the manager gives them."""

    def __init__(
        self,
        identity: Identity,
        slots: int,
        store: Store,
        bus: Bus,
        executor: Executor,
        reporter: BusReporter,
        runtime: Runtime,
        pace: Pace,
        life: Lifecycle,
        *,
        lives: Callable[[], bool],
        holders: Holders,
        lake: Sharing,
        foreign: Callable[[str], Instruction | None] | None = None,
    ) -> None:
        self._identity = identity
        self._store = store
        self._bus = bus
        self._executor = executor
        self._reporter = reporter
        self._runtime = runtime
        self._pace = pace
        self._life = life
        self._lives = lives
        """Whether the JVM is still there, once it was started."""
        self._own_host = OwnHost(store, holders, runtime)
        self._lake = lake
        self._refusal: WrongUse | None = None
        """Others have the lake: known when it registers, at the start or anew."""
        carried = (store, executor, reporter, runtime, pace, life)
        self._assignments = Assignments(*carried, foreign=foreign)
        self._foreign_manager = foreign is not None
        """A foreign manager gives the orders: the store hears of executions from this process."""
        self._mailbox: Mailbox[Command | SlotFree | Rows | Signal | WrongUse] = runtime.mailbox()
        self._slots = {
            slot.id: slot
            for slot in (Slot(runtime.uuid(), runtime.mailbox()) for _ in range(slots))
        }
        self._minded: Mailbox[Signal] = runtime.mailbox()
        # Seconds that never jump: a clock set back must not silence it for as long.
        self._next_beat = 0.0
        self._drained_by: float | None = None
        life.on_stop(lambda: self._mailbox.put(Signal.STOP))

    def serve(self) -> None:
        """Register, work until told to stop, and leave when the work is done or handed back.

        Raises WrongUse where others have the lake: before any work, or when they took it over while
        this process was silent.
        """
        # Listening first: whoever is known can be told something.
        inbox = self._bus.worker_inbox(list(self._slots))
        try:
            self._own_host.free_dead()
            self._register()
        except TidegateError:
            inbox.close()
            raise
        self._runtime.spawn("post", lambda: self._read_post(inbox))
        self._runtime.spawn("minder", self._mind)
        for slot in self._slots.values():
            self._runtime.spawn(f"slot {slot.id}", lambda slot=slot: self._work(slot))  # type: ignore[misc]
        while not self._has_left():
            self._beat()
            item = self._mailbox.receive(self._until_beat())
            if item is not None:
                self._take(item)
        for slot in self._slots.values():
            slot.mailbox.put(Signal.LEAVE)
        self._minded.put(Signal.LEAVE)
        self._wait_for_the_minder()
        if self._refusal is not None:
            raise self._refusal

    def _register(self) -> None:
        me = self._identity
        self._store.instances.register(
            [
                Instance(
                    id=slot.id,
                    state=slot.state,
                    name=me.name,
                    host=me.host,
                    pid=me.pid,
                    process=me.process,
                    kinds=self._executor.kinds,
                    tags=me.tags,
                )
                for slot in self._slots.values()
            ],
            self._lake,
            self._own_host.dead() if not self._lake.one_commit_wins else frozenset(),
        )

    def _wait_for_the_minder(self) -> None:
        """Let the last word to the store be that this process left; but not for ever."""
        until = self._runtime.monotonic() + LAST_WORD_SECONDS
        while (left := until - self._runtime.monotonic()) > 0:
            if self._mailbox.receive(left) is Signal.LEAVE:
                return

    def _leave(self) -> None:
        try:
            self._store.instances.set_status(self._identity.process, InstanceStatus.UNLOADED)
        except StoreError as error:
            log.warning("left without a word: %s", error)

    # What the worker itself does; nothing here waits for anything.

    def _take(self, item: Command | SlotFree | Rows | Signal | WrongUse) -> None:
        match item:
            case Command():
                self._hear(item.message, item.delivery)
            case SlotFree():
                self._free(self._slots[item.instance], item.reported)
            case Rows():
                self._compare(item.open)
            case Signal():
                self._stop()
            case WrongUse():
                self._give_way(item)

    def _free(self, slot: Slot, reported: bool) -> None:
        slot.execution_id = None
        if slot.owes_word or not reported or self._foreign_manager:
            # At once: the manager need not wait for the next beat to use the slot again.
            slot.owes_word = False
            self._bus.publish([Heartbeat(slot.id, slot.state, self._runtime.now())])

    def _hear(self, message: Message, delivery: Delivery) -> None:
        match message:
            case Assign() if message.assignee in self._slots:
                given = (message.execution_id, message.assignee, message.configuration)
                self._give(Assignment(*given, delivery))
            case Cancel() if message.assignee in self._slots:
                self._minded.put(Signal.STOP)
            case Shutdown() if message.assignee in self._slots:
                self._life.stop()

    def _give(self, order: Assignment) -> None:
        slot = self._slots[order.instance]
        if order.execution_id in slot.seen:
            return
        slot.seen.append(order.execution_id)
        if slot.execution_id or self._life.stopping:
            slot.owes_word = True
            self._reporter.rejected(order.execution_id, slot.id)
            return
        slot.execution_id = order.execution_id
        slot.mailbox.put(order)

    def _compare(self, open: Sequence[Execution]) -> None:
        """Hold what the store says against what the slots do."""
        by_id = {execution.id: execution for execution in open}
        for execution in open:
            if execution.state is ExecutionState.ASSIGNED and not self._life.stopping:
                self._give(Assignment(execution.id, execution.etl_worker))
            elif execution.cancel_requested_at is not None:
                self._interrupt(execution.id, Interruption("cancelled by hand", failure=True))
        for slot in self._slots.values():
            if slot.execution_id and slot.execution_id not in by_id and not self._foreign_manager:
                # It came back from the dead: what it runs is somebody else's by now.
                self._interrupt(slot.execution_id, Interruption("no longer its own"))

    def _stop(self) -> None:
        now = self._runtime.monotonic()
        if self._drained_by is None:
            self._drained_by = now + self._pace.drain / 1000
            self._minded.put(Signal.STOP)
        if self._life.in_a_hurry or now >= self._drained_by:
            self._hand_back()

    def _give_way(self, refusal: WrongUse) -> None:
        """End at once: others have the lake, and what runs here is theirs by now."""
        self._refusal = refusal
        self._drained_by = self._runtime.monotonic()
        self._life.stop()

    def _hand_back(self) -> None:
        for slot in self._slots.values():
            if slot.execution_id:
                why = Interruption("handed back: its worker stopped")
                self._interrupt(slot.execution_id, why)

    def _interrupt(self, execution_id: str, why: Interruption) -> None:
        # Spark may take its time to answer.
        self._runtime.spawn("interrupt", lambda: self._executor.interrupt(execution_id, why))

    def _has_left(self) -> bool:
        if not self._lives():
            log.error("Spark is gone: this worker ends, another takes its work up")
            return True
        if self._drained_by is None:
            return False
        if self._runtime.monotonic() >= self._drained_by:
            self._hand_back()
        return not any(slot.execution_id for slot in self._slots.values())

    def _beat(self) -> None:
        if self._runtime.monotonic() < self._next_beat:
            return
        self._next_beat = self._runtime.monotonic() + self._pace.heartbeat / 1000
        now = self._runtime.now()
        self._bus.publish([Heartbeat(id, state, now) for id, state in self._roll_call().items()])

    def _roll_call(self) -> dict[str, InstanceState]:
        """Let each slot say whether it is busy; who said so owes the word that it no longer is."""
        for slot in self._slots.values():
            slot.owes_word = slot.owes_word or slot.execution_id is not None
        return {slot.id: slot.state for slot in self._slots.values()}

    def _until_beat(self) -> float:
        left = self._next_beat - self._runtime.monotonic()
        return max(0.0, min(left, self._pace.loop / 1000))

    # The threads beside it.

    def _read_post(self, inbox: Inbox) -> None:
        while not self._life.stopping:
            deliveries = inbox.receive(self._pace.loop / 1000)
            refused = []
            for delivery in deliveries:
                try:
                    self._mailbox.put(Command(parse(delivery.channel, delivery.body), delivery))
                except Malformed as error:
                    refused.append((delivery, str(error)))
            self._assignments.refuse(refused)
            inbox.done(deliveries)
        inbox.close()

    def _mind(self) -> None:
        """Keep the store in the picture, and hear from it what the bus may have lost."""
        while True:
            try:
                if self._life.stopping:
                    me = self._identity.process
                    self._store.instances.set_status(me, InstanceStatus.CLOSING)
                elif self._is_drained():
                    self._life.stop()
                self._own_host.free_dead()
                self._store.instances.beat(self._roll_call()).result()
                self._mailbox.put(Rows(self._store.executions.open(list(self._slots))))
            except StoreError as error:
                log.warning("%s", error)
            if self._minded.receive(self._pace.heartbeat / 1000) is Signal.LEAVE:
                self._leave()
                self._mailbox.put(Signal.LEAVE)
                return

    def _is_drained(self) -> bool:
        """Tell whether an operator wants this process to end.

        One that was forgotten or counted as dead registers anew, unless its lake is others' now.
        """
        mine = self._store.instances.of(self._identity.process)
        if sum(one.lives for one in mine) < len(self._slots):
            try:
                self._register()
            except WrongUse as refusal:
                self._mailbox.put(refusal)
        return any(one.status is InstanceStatus.CLOSING for one in mine)

    def _work(self, slot: Slot) -> None:
        while True:
            order = slot.mailbox.receive(None)
            if not isinstance(order, Assignment):
                return
            reported = False
            try:
                reported = self._assignments.run(order)
            except StoreError as error:
                # Not claimed, or claimed and unknown: the store tells the next who looks.
                log.warning("%s", error)
            except Exception:
                # A slot that ended here would be busy for ever.
                log.exception("execution %s", order.execution_id)
            self._mailbox.put(SlotFree(slot.id, reported))
