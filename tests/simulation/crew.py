"""Processes put together as the commands do it: managers, workers, and a foreign worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.kinds import counting
from tests.kinds.counting import CountDefinition, CountPlanner, CountRunner
from tests.property.lake import Idle, ModelLake, Silent
from tidegate.control.executor import Executor
from tidegate.control.foreground import Foreground
from tidegate.control.lifecycle import Lifecycle
from tidegate.control.manager import Manager
from tidegate.control.slot import BusReporter, NoReporter
from tidegate.control.worker import Identity, Worker
from tidegate.errors import WrongUse
from tidegate.model.flow import Kind
from tidegate.model.instances import Pace, Sharing, Writers, host_of
from tidegate.model.messages import (
    Accepted,
    Assign,
    Failed,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Rejected,
    Started,
    parse,
)
from tidegate.ports.kinds import Planner, Reporter, Runner
from tidegate.store import SqlStore
from tidegate.store.definitions import ReadDefinition
from tidegate.tables.definition import TableDefinition, as_table
from tidegate.tables.planner import TablePlanner
from tidegate.tables.rebuild import Shadows
from tidegate.tables.runner import TableRunner

from .database import Database, played_store
from .heap import Heap
from .landing import PlayedLanding
from .network import Network, PlayedBus
from .process import Process
from .sea import Jvm, Loader, Sea, Shore

PACE = Pace(
    heartbeat=1_500,
    dead_after=3_000,
    lease=2_500,
    loop=1_250,
    accept_within=2_500,
    drain=3_000,
    pause_after=1_000_000,
)
KINDS: Mapping[Kind, ReadDefinition] = {
    Kind.TABLE: TableDefinition.from_dict,
    counting.KIND: CountDefinition.from_dict,
}
"""The kinds of flow that are played, and how their definitions are read back."""
HOME, AWAY = "home", "away"
"""The hosts: most plays have one."""
_LOOK_AGAIN_SECONDS = 0.5
LONGEST_LINGER = 4_000
"""Milliseconds that a JVM outlives its process."""


@dataclass
class Member:
    """One process of the crew, and what was started in it."""

    process: Process
    jvm: Jvm
    life: Lifecycle = field(default_factory=Lifecycle)

    @property
    def hostid(self) -> str:
        return hostid_of(self.process)

    @property
    def may_write(self) -> bool:
        return self.process.alive or self.jvm.alive

    def kill(self) -> None:
        """Kill the whole process group."""
        self.jvm.end()
        self.process.kill()

    def stop(self, milliseconds: float, *, all_of_it: bool) -> None:
        self.process.stop(milliseconds)
        if all_of_it:
            self.jvm.stopped_until = self.process.monotonic() * 1000 + milliseconds


def hostid_of(process: Process) -> str:
    return f"{process.host}:{process.number}:{process.name}"


@dataclass
class Harbour:
    """What the crew shares, and the crew."""

    heap: Heap
    chance: Random
    database: Database
    network: Network
    sea: Sea
    tell: Callable[[str], None]
    operator: SqlStore
    """The store, for people and checks: it never fails them."""
    lost_hosts: set[str] = field(default_factory=set)
    """Hosts that died and do not come back."""
    members: dict[str, Member] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    _numbers: int = 0

    @property
    def lake(self) -> Sharing:
        """What the processes know of the sea: all of them the same."""
        writers = Writers.ALL if self.sea.atomic else Writers.ONE_HOST
        return Sharing(writers, "/sea", PACE.dead_after)

    def lose_host(self, host: str) -> None:
        """Let a host die with all that runs on it, for good."""
        self.lost_hosts.add(host)
        for member in list(self.members.values()):
            if member.process.host == host:
                member.kill()

    def start(self, role: str, slots: int, host: str) -> Member:
        """Start a process: a manager, a worker, or both in one, as their names say."""
        member = self._join(role, host, has_jvm="worker" in role)
        process = member.process
        bus = PlayedBus(self.network, process)
        if "manager" in role:
            manager = self._manager(member, bus)
            process.spawn("manager", lambda: self._lead(member, manager))
        if "worker" in role:
            worker = self._worker(member, bus, slots)
            process.spawn("worker", lambda: self._serve(member, worker))
        return member

    def _join(self, role: str, host: str, *, has_jvm: bool) -> Member:
        process = self._process(role, host)
        member = Member(process, Jvm(process.name, self.sea, host, alive=has_jvm))
        self.members[member.hostid] = member
        # However the process ends, its JVM sees it and ends as well, some time later.
        process.on_death.append(
            lambda: self.heap.after(self.chance.uniform(0, LONGEST_LINGER), member.jvm.end)
        )
        return member

    def _process(self, role: str, host: str) -> Process:
        self._numbers += 1
        name = f"{role}{self._numbers}"
        self.tell(f"{name} starts on {host}")
        process = Process(name, self._numbers, self.heap, self.chance, self.tell, host)
        self.processes.append(process)
        return process

    def clear(self) -> None:
        """End whatever still runs: nothing else lets go of what a suspended thread holds."""
        for process in self.processes:
            process.kill()

    def _lead(self, member: Member, manager: Manager) -> None:
        manager.serve()
        if not member.jvm.alive:
            # No worker beside it that has to leave first.
            self.heap.after(0, member.kill)

    def _serve(self, member: Member, worker: Worker) -> None:
        try:
            worker.serve()
        except WrongUse as refusal:
            self.tell(f"{member.process.name} gives way: {refusal}")
        else:
            self.tell(f"{member.process.name} leaves")
        # As a real one: the leader in it gives up first, then the JVM ends, then the process.
        member.life.stop()
        member.process.sleep(1)
        self.heap.after(0, member.kill)

    def _manager(self, member: Member, bus: PlayedBus) -> Manager:
        process = member.process
        store = self._store(process)
        return Manager(
            store,
            bus,
            lambda: self._planners(process, store),
            PlayedHolders(process, self),
            process,
            PACE,
            member.life,
            self.lake,
        )

    def _planners(self, process: Process, store: SqlStore) -> Mapping[Kind, Planner]:
        lake, holders = ModelLake(Shore(process, self.sea)), PlayedHolders(process, self)
        return {
            Kind.TABLE: TablePlanner(None, store, lake, holders, process),
            counting.KIND: CountPlanner(store, process),
        }

    def start_run(self, flows: Collection[str], host: str) -> Member:
        """Start a run by hand, as `tidegate run` does when it finds no manager."""
        member = self._join("run", host, has_jvm=True)
        process = member.process
        store, lake = self._store(process), ModelLake(Shore(process, self.sea))
        holders = PlayedHolders(process, self)
        executor = self._executor(member, store, NoReporter())

        def run() -> None:
            applied = store.definitions.current(Kind.TABLE)
            definitions = {topic: as_table(one.definition) for topic, one in applied.items()}
            planners: list[Planner] = [
                TablePlanner(definitions, store, lake, holders, process),
                CountPlanner(store, process),
            ]
            shadows = Shadows(store, lake, holders, process)
            Foreground(planners, executor, Silent(), shadows.sweep).run(flows)
            self.tell(f"{process.name} is done")
            self.heap.after(0, member.kill)

        process.spawn("run", run)
        return member

    def _store(self, process: Process) -> SqlStore:
        return played_store(self.database, self.operator, process, KINDS)

    def _executor(self, member: Member, store: SqlStore, reporter: Reporter) -> Executor:
        process, jvm = member.process, member.jvm
        return Executor(
            store,
            self._runners(member, store),
            PlayedHolders(process, self),
            process,
            reporter,
            PACE.pause_after,
            lambda: jvm.alive,
            self.lake,
        )

    def _runners(self, member: Member, store: SqlStore) -> Mapping[Kind, Runner]:
        process, jvm = member.process, member.jvm
        lake = ModelLake(Shore(process, self.sea))
        loader = Loader(process, jvm, store, lake)

        def before_block(_execution_id: str) -> None:
            process.pass_by()
            self.sea.may_fail()

        return {
            Kind.TABLE: TableRunner(store, lake, loader, loader, Idle(), process),
            counting.KIND: CountRunner(PlayedLanding(process, jvm), jvm.interrupt, before_block),
        }

    def _worker(self, member: Member, bus: PlayedBus, slots: int) -> Worker:
        process, jvm = member.process, member.jvm
        store, reporter = self._store(process), BusReporter(bus, process)
        executor = self._executor(member, store, reporter)
        return Worker(
            Identity(process.name, process.host, process.number, member.hostid),
            slots,
            store,
            bus,
            executor,
            reporter,
            process,
            PACE,
            member.life,
            lives=lambda: jvm.alive,
            holders=PlayedHolders(process, self),
            lake=self.lake,
        )

    def start_foreign(self) -> Process:
        """Start a worker that knows the protocol and nothing else."""
        process = self._process("foreign", HOME)
        foreign = Foreign(process, PlayedBus(self.network, process), self.chance)
        process.spawn("foreign", foreign.serve)
        return process


class PlayedHolders:
    """Implements `ports.Holders`: the kernel's lock is free when process and JVM are gone.

    Of another host nothing can be seen: its processes live for ever.
    """

    def __init__(self, process: Process, harbour: Harbour) -> None:
        self._process = process
        self._harbour = harbour

    @property
    def me(self) -> str:
        return hostid_of(self._process)

    def _is_here(self, hostid: str) -> bool:
        return host_of(hostid) == self._process.host

    def lives(self, hostid: str) -> bool:
        if not self._is_here(hostid):
            return True
        member = self._harbour.members.get(hostid)
        return member is not None and member.may_write

    def wait_for_end(self, hostid: str, seconds: float) -> bool:
        until = self._process.monotonic() + seconds
        while self.lives(hostid):
            if not self._is_here(hostid):
                return False
            runs = self._harbour.members[hostid].process.alive
            if runs or self._process.monotonic() > until:
                return False
            self._process.sleep(_LOOK_AGAIN_SECONDS)
        return True

    def end(self, hostid: str) -> None:
        member = self._harbour.members.get(hostid)
        here = self._is_here(hostid) and hostid != self.me
        if member is not None and here and member.may_write:
            self._harbour.tell(f"{self._process.name} kills {member.process.name}")
            member.kill()


class Foreign:
    """Runs what it is told over the bus; says so, refuses, or forgets about it."""

    def __init__(self, process: Process, bus: PlayedBus, chance: Random) -> None:
        self._process = process
        self._bus = bus
        self._chance = chance
        self._id = process.uuid()
        self._busy = False

    def serve(self) -> None:
        inbox = self._bus.worker_inbox([self._id])
        self._process.spawn("heart", self._beat)
        while True:
            for delivery in inbox.receive(60.0):
                message = parse(delivery.channel, delivery.body)
                if isinstance(message, Assign):
                    self._run(message)

    def _beat(self) -> None:
        while True:
            state = InstanceState.BUSY if self._busy else InstanceState.IDLE
            self._say(Heartbeat(self._id, state, self._process.now()))
            self._process.sleep(PACE.heartbeat / 1000)

    def _run(self, message: Assign) -> None:
        about = (message.execution_id, self._id, self._process.now())
        if self._chance.random() < 0.2:
            self._say(Rejected(*about))
            return
        self._busy = True
        self._say(Accepted(*about))
        self._say(Started(*about))
        self._process.sleep(self._chance.random() * 3)
        about = (message.execution_id, self._id, self._process.now())
        self._busy = False
        self._say(Failed(*about, "it failed") if self._chance.random() < 0.1 else Finished(*about))

    def _say(self, message: Message) -> None:
        self._bus.publish([message])
