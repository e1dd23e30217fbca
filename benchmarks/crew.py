"""The real manager and worker as processes of their own, over a lake in which nothing is done.

python -m benchmarks.crew manager|worker FOLDER BUS SLOTS TAG
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.idle_lake import IdleLake, IdleRunner
from tidegate.bus import open_bus
from tidegate.control.executor import Executor
from tidegate.control.lifecycle import Lifecycle
from tidegate.control.manager import Manager
from tidegate.control.slot import BusReporter
from tidegate.control.worker import Identity, Worker
from tidegate.model.flow import Kind
from tidegate.model.instances import FOR_ALL, Pace, Sharing
from tidegate.ports.kinds import Planner
from tidegate.ports.outside import Bus
from tidegate.ports.store import Store
from tidegate.runtime import FlockHolders, RealRuntime, settle
from tidegate.settings import BusSettings
from tidegate.store import SqlStore, open_store
from tidegate.tables.definition import TableDefinition
from tidegate.tables.planner import TablePlanner


@dataclass(frozen=True)
class Place:
    """A folder with a store and the locks of those who work there, and the bus they talk on."""

    folder: Path
    bus: str = "embedded"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def open_store(self) -> SqlStore:
        return open_store(self.url, {Kind.TABLE: TableDefinition.from_dict})


@dataclass(frozen=True)
class Gear:
    """What a process of the control plane works with."""

    store: Store
    bus: Bus
    holders: FlockHolders
    runtime: RealRuntime
    lake: IdleLake

    @classmethod
    def at(cls, place: Place) -> Gear:
        runtime = RealRuntime()
        holders = FlockHolders(place.folder / "locks", runtime)
        holders.hold()
        store = place.open_store()
        bus = open_bus(BusSettings(url=place.bus), place.url, store.messages, runtime.now)
        return cls(store, bus, holders, runtime, IdleLake(runtime))

    def executor(self, sharing: Sharing = FOR_ALL) -> Executor:
        return Executor(
            self.store,
            {Kind.TABLE: IdleRunner(self.store, self.lake, self.runtime)},
            self.holders,
            self.runtime,
            BusReporter(self.bus, self.runtime),
            pause_after=10,
            lives=lambda: True,
            lake=sharing,
        )

    def planners(self) -> Mapping[Kind, Planner]:
        planner = TablePlanner(None, self.store, self.lake, self.holders, self.runtime)
        return {Kind.TABLE: planner}

    def worker(
        self, slots: int, tag: str, pace: Pace, life: Lifecycle, sharing: Sharing = FOR_ALL
    ) -> Worker:
        host, pid, _ = self.holders.me.split(":")
        return Worker(
            Identity("bench", host, int(pid), self.holders.me, (tag,)),
            slots,
            self.store,
            self.bus,
            self.executor(sharing),
            BusReporter(self.bus, self.runtime),
            self.runtime,
            pace,
            life,
            lives=lambda: True,
            holders=self.holders,
            lake=sharing,
        )


@contextmanager
def process(
    role: str, place: Place, slots: int = 0, tag: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of them for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.crew", role, str(place.folder), place.bus]
    command += [str(slots), tag]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as started:
        try:
            yield started
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def serve(role: str, place: Place, slots: int, tag: str) -> None:
    """Be one of them, until killed."""
    gear, pace, life = Gear.at(place), Pace(), Lifecycle()
    settle()
    if role == "manager":
        gear.bus.create_channels()
        planners, holders = gear.planners, gear.holders
        Manager(gear.store, gear.bus, planners, holders, gear.runtime, pace, life, FOR_ALL).serve()
        return
    gear.worker(slots, tag, pace, life).serve()


def _end_with_parent() -> None:
    """Leave nothing running when whoever measures is killed: its end of the pipe closes then."""
    sys.stdin.read()
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    role, folder, bus, slots, tag = arguments
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(role, Place(Path(folder), bus), int(slots), tag)


if __name__ == "__main__":
    main(sys.argv[1:])
