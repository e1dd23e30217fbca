"""`python -m benchmarks [NAME…]`: bare work and ours from the same warm session, with targets."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.ageing import many_steps
from benchmarks.bed import Options, machine
from benchmarks.chain import chain_of_topics
from benchmarks.checks import clean_checks
from benchmarks.cold import cold_run
from benchmarks.executions import no_op_executions
from benchmarks.heartbeats import many_heartbeats
from benchmarks.idle import nothing_to_do
from benchmarks.latency import commit_to_assign
from benchmarks.loop import leaders_turn
from benchmarks.memory import flat_memory
from benchmarks.planning import block_bounds, many_topics
from benchmarks.step import against_hand

BENCHMARKS: dict[str, Callable[[Options], None]] = {
    "cold": cold_run,
    "step": against_hand,
    "checks": clean_checks,
    "bounds": block_bounds,
    "plan": many_topics,
    "loop": leaders_turn,
    "executions": no_op_executions,
    "latency": commit_to_assign,
    "heartbeats": many_heartbeats,
    "idle": nothing_to_do,
    "chain": chain_of_topics,
    "memory": flat_memory,
    "ageing": many_steps,
}


def main() -> None:
    """Run those that were named, or all."""
    names, options = _arguments()
    for name in names:
        print(f"\n{name} ({machine()})")
        BENCHMARKS[name](options)


def _arguments() -> tuple[list[str], Options]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a large block")
    parser.add_argument("--few", type=int, default=1_000, help="rows of a small block")
    parser.add_argument("--repeats", type=int, default=10, help="turns of each; `step` takes more")
    parser.add_argument("--files", type=int, default=10_000, help="of the base in `bounds`")
    parser.add_argument("--topics", type=int, default=10_000, help="in `plan` and `loop`")
    parser.add_argument("--steps", type=int, default=2_000, help="in `ageing`")
    parser.add_argument("--instances", type=int, default=256, help="in `executions`")
    given = vars(parser.parse_args())
    names = given.pop("names")
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    return names or list(BENCHMARKS), Options(**given)


if __name__ == "__main__":
    main()
