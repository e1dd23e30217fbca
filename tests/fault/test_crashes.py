"""Killed at every point where dying matters, the next run gives the same tables, by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Folder, entries, orders

POINTS = (
    "block.after_claim",
    "block.after_declare",
    "step.before_write",
    "step.after_write",
    "block.before_commit",
    "block.after_commit",
    "reload.before_write",
    "reload.after_write",
)
LINEAGE = entries(
    {"table": "fact.orders", "depends_on": ["stage.orders"], "transforms": ["o"], "maxstep": 20},
    {"table": "fact.latest", "depends_on": ["fact.orders"], "transforms": ["latest"], "keys": "k"},
    {
        "table": "mart.total",
        "depends_on": ["fact.orders"],
        "transforms": ["total"],
        "processor": "reload",
    },
)
VIEWS = {
    "views/o.sql": "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)",
    "views/latest.sql": "SELECT pos, id, k, amount FROM fact.orders WHERE block(pos, id)",
    "views/total.sql": "SELECT count(*) AS n, sum(amount) AS total FROM fact.orders",
}


@pytest.fixture
def shop(tmp_path: Path) -> Folder:
    shop = Folder(tmp_path)
    shop.write({"lineage.yaml": LINEAGE, **VIEWS})
    return shop


def crash(shop: Folder, point: str) -> None:
    done = shop.tidegate("run", env={**os.environ, "TIDEGATE_CRASHPOINT": point}, group=True)
    assert done.returncode == -signal.SIGKILL, (point, done.stdout, done.stderr)


def test_a_kill_at_each_point_loses_nothing_and_doubles_nothing(shop: Folder) -> None:
    rows: list[dict[str, Any]] = []
    declared: dict[tuple[str, int], tuple[int, int]] = {}
    reached: dict[str, tuple[int, int]] = {}
    for number, point in enumerate(POINTS):
        # Each run first takes over what the one before left, and has new rows to go on with.
        fresh = orders((100 * number + n, 100 * number + n) for n in range(25))
        rows += fresh
        shop.land("stage.orders", fresh)
        crash(shop, point)
        for offset in shop.json("offsets", "show"):
            topic, last = offset["topic"], (offset["last_pos"], offset["last_id"])
            assert last >= reached.get(topic, last), "last went back"
            reached[topic] = last
            if offset["next_pos"] is not None:
                block, end = (topic, offset["seq"] + 1), (offset["next_pos"], offset["next_id"])
                assert declared.setdefault(block, end) == end, "a declared block changed"
    done = shop.tidegate("run")
    assert done.returncode == 0, done.stderr
    check(shop, rows)


def check(shop: Folder, rows: list[dict[str, Any]]) -> None:
    expected = sorted(((r["pos"], r["id"], r["k"], r["amount"]) for r in rows), key=repr)
    assert shop.rows("fact.orders", "pos", "id", "k", "amount") == expected
    newest = {row["k"]: row for row in rows}
    assert shop.rows("fact.latest", "k", "id") == sorted(
        ((k, r["id"]) for k, r in newest.items()), key=repr
    )
    assert shop.rows("mart.total", "n", "total") == [(len(rows), sum(r["amount"] for r in rows))]
    for topic in ("fact.orders", "fact.latest", "mart.total"):
        log = shop.tidegate("logs", topic).stdout
        ends = log.count("task-completed") + log.count("task-failed")
        assert log.count("task-started") == ends, log


def test_a_second_run_leaves_a_held_topic_alone_and_says_who_holds_it(shop: Folder) -> None:
    rows = orders((n, n) for n in range(15))
    shop.land("stage.orders", rows)
    first = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "-C", str(shop.path), "run", "fact.orders"],
        env={**os.environ, "TIDEGATE_CRASHPOINT": "block.after_declare:1:stop"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        told = shop.json("run", "fact.orders")
        assert told["executions"] == []
        assert f":{first.pid}:" in told["not_due"][0]["why"]
        assert "since 20" in told["not_due"][0]["why"]
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    assert first.wait() == 0
    assert len(shop.rows("fact.orders", "id")) == 15
