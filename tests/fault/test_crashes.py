"""Killed where dying matters, the next run gives the same tables, by itself.

`make test` kills the process group once wherever that leaves something else behind;
`make test-faults` also leaves a JVM behind and lets a stopped run be overtaken, at every point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.fault.harness import POINTS, Battered, reading

CHOSEN = (
    ("block.after_claim", "step.after_aside", "block.after_commit"),
    ("block.after_declare", "step.after_write", "reload.after_write"),
)
"""One point of each kind: held, declared, rows aside, written, committed, a whole table written."""


def batter(battered: Battered, crashes: Iterable[tuple[str, int, str]]) -> None:
    """Crash in a chain: each run first takes over what the one before left."""
    with reading(battered):
        for crash in crashes:
            battered.land()
            battered.crash(*crash)
        battered.finish()
    battered.check()


@pytest.mark.parametrize("points", CHOSEN, ids=lambda points: points[0])
def test_dying_anywhere_loses_nothing_and_doubles_nothing(
    tmp_path: Path, points: tuple[str, ...]
) -> None:
    batter(Battered(tmp_path, blocks=1), [(point, 1, "group") for point in points])


@pytest.mark.long
@pytest.mark.parametrize("action", ["group", "python", "stop"])
@pytest.mark.parametrize("hit", [1, 3])
def test_every_point(tmp_path: Path, action: str, hit: int) -> None:
    battered = Battered(tmp_path, blocks=hit)
    # The first load of a table creates it, which later ones find there.
    battered.land()
    battered.finish()
    batter(battered, [(point, hit, action) for point in POINTS])


@pytest.mark.long
def test_the_harness_sees_a_row_that_is_written_twice(tmp_path: Path) -> None:
    battered = Battered(tmp_path, blocks=1, module="tests.fault.unfenced")
    with pytest.raises(AssertionError):
        batter(battered, [("step.after_write", 2, "group")])
    ids = [row[0] for row in battered.shop.rows("fact.orders", "id")]
    assert len(ids) > len(set(ids))


@pytest.mark.long
def test_a_second_run_leaves_a_held_topic_alone_and_says_who_holds_it(tmp_path: Path) -> None:
    battered = Battered(tmp_path, blocks=1)
    battered.land()
    first = battered.start("block.after_declare:1:stop")
    try:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        told = battered.shop.json("run", "fact.checked")
        assert told["executions"] == []
        assert f":{first.pid}:" in told["not_due"][0]["why"]
        assert "since 20" in told["not_due"][0]["why"]
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    first.communicate()
    assert first.returncode == 0
    battered.check()
