"""Thousands of plays hold every promise; without a guard, they do not.

Each in a process of its own, by the command that people use: there the order of sets is fixed, so
that a seed that fails here fails alone too. Which seed fails without a guard is pinned; to search
one takes minutes, and is done by `make simulate`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from .guards import PINNED, Guard

SEEDS = 2_000


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", "--no-search", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.plays
@pytest.mark.parametrize("start", [1, 1 + SEEDS // 2])
def test_every_promise_holds(start: int) -> None:
    played = simulate("--seeds", str(SEEDS // 2), "--start", str(start), "--processes", "1")
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_without_a_guard_a_promise_is_broken(guard: Guard) -> None:
    seed = str(PINNED[guard])
    alone = ("--seeds", "1", "--start", seed, "--processes", "1")
    played = simulate(*alone, "--without", guard.name)
    assert played.returncode in (0, 1), played.stdout + played.stderr
    assert "broke a promise" in played.stdout, (
        f"seed {seed} holds every promise without the guard {guard.name} now: the plays have"
        " changed, or nothing needs the guard any more; search another seed with"
        f" `python -m tests.simulation --without {guard.name}`, and pin it in"
        " tests/simulation/guards.py"
    )


def test_a_seed_gives_the_same_play_each_time() -> None:
    broken = ("--seeds", "500", "--without", "TRANSACTION", "--story", "--processes", "1")
    one, other = simulate(*broken), simulate(*broken)
    assert one.returncode == 1
    assert one.stdout == other.stdout
