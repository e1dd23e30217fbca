"""`python -m tests.simulation --seeds N --start M`: play seeds on all cores, then test the guards.

Where every seed holds its promises, each guard is taken away in turn, and seeds are played until
one breaks a promise for the lack of it. `--without GUARD` does that for one guard alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from .guards import MOST_NEEDED, Guard
from .play import Verdict, play

_AT_ONCE = 8
"""Seeds that a process is given at a time."""
_SHOWN = 60
"""Lines of a story, the last ones; `--story` prints all of it."""


def main() -> int:
    _fix_the_order_of_sets()
    asked = _arguments()
    missing = Guard[asked.without] if asked.without else None
    seeds = range(asked.start, asked.start + asked.seeds)
    began = time.monotonic()
    played, broken = _play(seeds, missing, asked.processes)
    took = time.monotonic() - began
    if broken is not None:
        _tell_of(broken, played, missing, whole=asked.story)
        return 1
    print(f"{played} seeds from {asked.start}: every promise held ({took:.0f} s)")
    if missing is not None or asked.no_search:
        return 0
    needless = [guard for guard in Guard if not _is_needed(guard, asked.start, asked.processes)]
    return 1 if needless else 0


def _tell_of(broken: Verdict, played: int, missing: Guard | None, *, whole: bool) -> None:
    print("\n".join(broken.story if whole else broken.story[-_SHOWN:]))
    print(f"seed {broken.seed} broke a promise, the first of {played} seeds: {broken.broken}")
    without = f" --without {missing.name}" if missing else ""
    print(f"alone: python -m tests.simulation --seeds 1 --start {broken.seed} --story{without}")


def _is_needed(guard: Guard, start: int, processes: int) -> bool:
    """Search a seed that breaks a promise without a guard, and name it."""
    _, broken = _play(range(start, start + MOST_NEEDED), guard, processes)
    if broken is None:
        print(f"without {guard.name}: {MOST_NEEDED} seeds from {start} held every promise")
        return False
    print(f"without {guard.name}: seed {broken.seed} broke a promise: {broken.broken}")
    return True


def _fix_the_order_of_sets() -> None:
    """Begin anew with a fixed hash: a seed must give the same play in every process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Play the control plane on virtual time, with faults chosen by a seed.",
    )
    parser.add_argument("--seeds", type=_count, default=2_000, help="how many (default: 2000)")
    parser.add_argument("--start", type=int, default=1, help="the first one (default: 1)")
    parser.add_argument("--processes", type=_count, default=os.cpu_count() or 1)
    parser.add_argument("--story", action="store_true", help="print all of a failing seed's story")
    parser.add_argument(
        "--without", choices=[guard.name for guard in Guard], help="take one guard away: must fail"
    )
    parser.add_argument(
        "--no-search", action="store_true", help="play the seeds, and leave the guards alone"
    )
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _play(seeds: range, missing: Guard | None, processes: int) -> tuple[int, Verdict | None]:
    """Play in order, up to the first that breaks; give how many, and that one."""
    with _players(processes, missing) as verdicts, _bar(len(seeds)) as (bar, task):
        for played, verdict in enumerate(verdicts(seeds), start=1):
            bar.advance(task)
            if verdict.broken is not None:
                return played, verdict
    return len(seeds), None


@contextmanager
def _players(
    processes: int, missing: Guard | None
) -> Iterator[Callable[[Iterable[int]], Iterable[Verdict]]]:
    if processes == 1:
        yield partial(map, partial(play, missing=missing))
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield partial(pool.imap, partial(play, missing=missing), chunksize=_AT_ONCE)


@contextmanager
def _bar(seeds: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar, bar.add_task("", total=seeds)


if __name__ == "__main__":
    sys.exit(main())
