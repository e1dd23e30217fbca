"""Runs a soak and says what came of it; exit code 1 with what differs."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.control.processes import Crew
from tests.projects import Folder
from tests.soak.crew import Supervised, left_over
from tests.soak.mischief import EVERY_SECONDS, Mischief
from tests.soak.places import bus_settings, store_settings
from tests.soak.project import DEAD_AFTER_SECONDS, Tide, differences, write_project
from tests.soak.verdict import Watch, ends_told, faults, is_at_rest, summary
from tidegate.wiring import Parts, open_parts, read_project

TICK_SECONDS = 0.5
REST_SECONDS = 600.0
"""How long the tables may take to become complete when nothing is killed any more."""
LEAVE_SECONDS = 30.0


@dataclass(frozen=True)
class Asked:
    minutes: float
    seed: int
    store: str
    bus: str


def asked() -> Asked:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--bus", choices=["kafka", "embedded"], default="kafka")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    return Asked(given.minutes, seed, given.store, given.bus)


def main() -> int:
    wanted = asked()
    say(f"soak on {wanted.store} and {wanted.bus} for {wanted.minutes:g} min, seed {wanted.seed}")
    with opened(wanted) as (folder, parts):
        wrong = soak(wanted, folder, parts)
        say(summary(parts.store))
    for line in wrong:
        say(f"WRONG: {line}")
    again = f"--seed {wanted.seed} --minutes {wanted.minutes:g}"
    say(f"failed; the same choices again: {again}" if wrong else "passed: all of it holds")
    return 1 if wrong else 0


@contextmanager
def opened(wanted: Asked) -> Iterator[tuple[Folder, Parts]]:
    """Make the project with its store and bus, and open the store beside those who work."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-soak-")))
        folder = Folder(path / "shop")
        folder.path.mkdir()
        store = stack.enter_context(store_settings(wanted.store, path))
        bus = stack.enter_context(bus_settings(wanted.bus, path))
        write_project(folder, store, bus)
        applied = folder.tidegate("apply")
        assert applied.returncode == 0, applied.stderr
        yield folder, stack.enter_context(open_parts(read_project(folder.path)))


def soak(wanted: Asked, folder: Folder, parts: Parts) -> list[str]:
    """Run it, and give what is wrong."""
    tide, watch = Tide(folder, Random(wanted.seed)), Watch(parts.store)
    mischief = Mischief(Random(wanted.seed), stop_seconds=1.5 * DEAD_AFTER_SECONDS)
    with Crew(folder) as crew:
        supervised = Supervised(crew)
        run(wanted, supervised, tide, mischief, watch)
        mischief.end()
        say(f"{mischief.done} blows, {supervised.starts} starts; now it may come to rest")
        rested = rest(supervised, tide, watch, parts)
        wrong = [] if rested else [f"not complete after {REST_SECONDS:g} s: {stuck(parts)}"]
        codes = supervised.stop()
        wrong += [f"{role} ended with {code}" for role, code in codes.items() if code]
        wrong += leave(folder)
    wrong += [*watch.wrong, *faults(parts.store), *differences(folder)]
    say(f"{watch.looks:,} looks at the positions, {tide.landed:,} rows landed")
    return wrong + ends_told(parts.project.settings.store_url)


def run(
    wanted: Asked, supervised: Supervised, tide: Tide, mischief: Mischief, watch: Watch
) -> None:
    start = time.monotonic()
    end = start + 60 * wanted.minutes
    while (now := time.monotonic()) < end:
        supervised.turn()
        tide.turn()
        watch.turn()
        # None so late that nothing could follow from it.
        blow = mischief.turn(supervised) if now < end - EVERY_SECONDS else ""
        if blow:
            left = time.strftime("%M:%S", time.gmtime(end - now))
            say(f"{left} left  {tide.landed:>9,} landed {watch.through:>9,} through  {blow}")
        time.sleep(TICK_SECONDS)


def rest(supervised: Supervised, tide: Tide, watch: Watch, parts: Parts) -> bool:
    """Wait until the tables are complete; tell whether they became so."""
    until = time.monotonic() + REST_SECONDS
    while time.monotonic() < until:
        supervised.turn()
        watch.turn()
        if is_at_rest(parts, tide.newest, tide.landed):
            return True
        time.sleep(TICK_SECONDS)
    return False


def stuck(parts: Parts) -> str:
    """Say what the plan says of topics that did not come to their end."""
    plan = parts.planner().plan(eager=False)
    return "; ".join(f"{topic}: {verdict.why}" for topic, verdict in plan.verdicts.items())


def leave(folder: Folder) -> list[str]:
    """Give the processes that are left a while after all were told to end, and end them."""
    until = time.monotonic() + LEAVE_SECONDS
    while (left := left_over(folder.path)) and time.monotonic() < until:
        time.sleep(TICK_SECONDS)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"left running: {pid}: {line[:150]}" for pid, line in left.items()]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
