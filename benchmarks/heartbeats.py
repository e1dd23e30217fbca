"""What the heartbeats of very many instances cost the manager."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bed import Options, judge, processor_seconds
from benchmarks.crew import Gear, Place, process
from tidegate.cli.output import print_table
from tidegate.model.flow import Kind
from tidegate.model.instances import Instance
from tidegate.model.messages import Heartbeat, InstanceState

INSTANCES = 10_000
EVERY_SECONDS = 10.0
IN_A_PROCESS = 10
WARM_SECONDS = 15.0
MEASURED_SECONDS = 30.0


def many_heartbeats(_options: Options) -> None:
    """Measure the manager's processor time while another process sends what the instances would.

    The instances are registered, ten to a worker process on hosts of their own, and each process's
    heartbeats come in one go, spread evenly over the time. The bare figure is the same manager with
    as many instances that say nothing.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        place = Place(Path(folder))
        gear = Gear.at(place)
        gear.store.instances.register(_instances())
        with process("manager", place) as manager:
            time.sleep(WARM_SECONDS)
            silent = _share(manager.pid, WARM_SECONDS)
            command = [sys.executable, "-m", "benchmarks.heartbeats", folder]
            with subprocess.Popen(command) as sender:
                time.sleep(WARM_SECONDS)
                busy = _share(manager.pid, MEASURED_SECONDS)
                sender.kill()
        heard = [one for one in gear.store.instances.all() if one.lives and one.reported_at]
        gear.store.close()
    if len(heard) < INSTANCES:
        raise SystemExit(f"only {len(heard)} instances were heard")
    line = (INSTANCES, INSTANCES / EVERY_SECONDS, silent, busy)
    columns = ("instances", "messages/s", "silent, of a core", "beating, of a core")
    print_table(columns, [line], empty="")
    judge("of a core for heartbeats", busy, 0.25)


def _share(pid: int, seconds: float) -> float:
    begin, used = time.perf_counter(), processor_seconds(pid)
    time.sleep(seconds)
    return (processor_seconds(pid) - used) / (time.perf_counter() - begin)


def _instances() -> list[Instance]:
    return [
        Instance(
            _id(number),
            name=f"w{number // IN_A_PROCESS}",
            host=f"h{number // 100}",
            process=f"h{number // 100}:{number // IN_A_PROCESS}:x",
            kinds=(Kind.TABLE,),
        )
        for number in range(INSTANCES)
    ]


def _id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def send(place: Place) -> None:
    """Beat for all of them, until killed."""
    gear = Gear.at(place)
    processes = INSTANCES // IN_A_PROCESS
    begin, turn = time.monotonic(), 0
    while True:
        first = turn % processes * IN_A_PROCESS
        now = gear.runtime.now()
        gear.bus.publish(
            [
                Heartbeat(_id(number), InstanceState.IDLE, now)
                for number in range(first, first + IN_A_PROCESS)
            ]
        )
        turn += 1
        time.sleep(max(0.0, begin + turn * EVERY_SECONDS / processes - time.monotonic()))


if __name__ == "__main__":
    send(Place(Path(sys.argv[1])))
