"""`python -m tests.simulation --seeds N --start M [--without GUARD]`: play seeds on all cores."""

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

from .guards import Guard
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
    if broken is None:
        print(f"{played} seeds from {asked.start}: every promise held ({took:.0f} s)")
        return 0
    lines = broken.story if asked.story else broken.story[-_SHOWN:]
    print("\n".join(lines))
    print(f"seed {broken.seed} broke a promise, the first of {played} seeds: {broken.broken}")
    without = f" --without {missing.name}" if missing else ""
    print(f"alone: python -m tests.simulation --seeds 1 --start {broken.seed} --story{without}")
    return 1


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
        "--without", choices=[guard.name for guard in Guard], help="take a guard away: must fail"
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
