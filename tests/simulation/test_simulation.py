"""Thousands of plays hold every promise; without a guard, they do not.

Each in a process of its own, by the command that people use: there the order of sets is fixed, so
that a seed that fails here fails alone too.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from .guards import Guard

SEEDS = 2_000
MOST_NEEDED = 5_000
"""Without a guard the plays must fail within so many seeds."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("start", [1, 1 + SEEDS // 2])
def test_every_promise_holds(start: int) -> None:
    played = simulate("--seeds", str(SEEDS // 2), "--start", str(start), "--processes", "1")
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_without_a_guard_a_promise_is_broken(guard: Guard) -> None:
    played = simulate("--seeds", str(MOST_NEEDED), "--without", guard.name, "--processes", "1")
    assert played.returncode == 1, played.stdout + played.stderr
    assert "broke a promise" in played.stdout


def test_a_seed_gives_the_same_play_each_time() -> None:
    broken = ("--seeds", "500", "--without", "TRANSACTION", "--story", "--processes", "1")
    one, other = simulate(*broken), simulate(*broken)
    assert one.returncode == 1
    assert one.stdout == other.stdout
