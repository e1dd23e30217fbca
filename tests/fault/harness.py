"""A project that is killed at named points, run on, and held against what was landed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.projects import Folder, entries, orders

POINTS = (
    "block.after_claim",
    "block.after_declare",
    "step.before_write",
    "step.after_aside",
    "step.after_write",
    "block.after_load",
    "block.before_commit",
    "block.after_commit",
    "reload.before_write",
    "reload.after_write",
)
BAD = 7
"""Each so many-th row fails a check."""
FACTS: tuple[dict[str, Any], ...] = (
    {"table": "fact.orders", "depends_on": ["stage.orders"], "transforms": ["o"]},
    {"table": "fact.latest", "depends_on": ["fact.orders"], "transforms": ["latest"], "keys": "k"},
    {
        "table": "fact.checked",
        "depends_on": ["stage.orders"],
        "transforms": ["checked"],
        "checks": {"good": f"id % {BAD} <> 3"},
    },
)
MART = {"depends_on": ["fact.orders"], "transforms": ["total"], "processor": "reload"}
PER_BLOCK = 10
VIEWS = {
    "views/o.sql": "SELECT pos, id, k, amount FROM stage.orders WHERE block(pos, id)",
    "views/latest.sql": "SELECT pos, id, k, amount FROM fact.orders WHERE block(pos, id)",
    "views/checked.sql": "SELECT pos, id, k FROM stage.orders WHERE block(pos, id)",
    "views/total.sql": "SELECT count(*) AS n, sum(amount) AS total FROM fact.orders",
}


class Battered:
    """A project that goes on whatever is done to it, and remembers what must not change.

    Each run passes every point as often as there are blocks in it, and marts.
    """

    def __init__(self, path: Path, blocks: int, module: str = "tidegate") -> None:
        self.shop = Folder(path)
        self.marts = [f"mart.m{number}" for number in range(blocks)]
        self._per_run = PER_BLOCK * blocks
        facts = [{**fact, "maxstep": PER_BLOCK} for fact in FACTS]
        marts = [{**MART, "table": mart} for mart in self.marts]
        self.shop.write({"lineage.yaml": entries(*facts, *marts), **VIEWS})
        self._module = module
        self._rows: list[dict[str, Any]] = []
        self._declared: dict[tuple[str, int], tuple[int, int]] = {}
        self._reached: dict[str, tuple[int, int]] = {}

    def land(self) -> None:
        first = len(self._rows)
        fresh = orders((first + n, first + n) for n in range(self._per_run))
        self._rows += fresh
        self.shop.land("stage.orders", fresh)

    def start(self, point: str = "") -> subprocess.Popen[bytes]:
        """Begin a run that dies at a point."""
        return subprocess.Popen(
            [sys.executable, "-m", self._module, "-C", str(self.shop.path), "run"],
            env={**os.environ, "TIDEGATE_CRASHPOINT": point},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def crash(self, point: str, hit: int, action: str) -> None:
        """Let a run die at a point, or be taken over while it is stopped there."""
        run = self.start(f"{point}:{hit}:{action}")
        try:
            if action == "stop":
                self._overtake(run, point)
            else:
                _, said = run.communicate()
                assert run.returncode == -signal.SIGKILL, (point, said)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        self.look()

    def _overtake(self, run: subprocess.Popen[bytes], point: str) -> None:
        """Unlock what a stopped run holds, let another one do the work, then let it go on."""
        _, status = os.waitpid(run.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), (point, status)
        for offset in self.shop.json("offsets", "show"):
            if offset["hostid"]:
                assert self.shop.tidegate("offsets", "unlock", offset["topic"]).returncode == 0
        self.look()
        self.finish()
        reached = dict(self._reached)
        os.kill(run.pid, signal.SIGCONT)
        _, said = run.communicate(timeout=300)
        assert b"Traceback" not in said, said.decode()
        self.look()
        assert self._reached == reached, "a run that was overtaken moved a position"

    def look(self) -> None:
        """Hold the positions against those of before: never back, and a declared end stays."""
        for offset in self.shop.json("offsets", "show"):
            topic, last = offset["topic"], (offset["last_pos"], offset["last_id"])
            assert last >= self._reached.get(topic, last), "last went back"
            self._reached[topic] = last
            if offset["next_pos"] is not None:
                block, end = (topic, offset["seq"] + 1), (offset["next_pos"], offset["next_id"])
                assert self._declared.setdefault(block, end) == end, "a declared block changed"

    def finish(self) -> None:
        """Run to the end, undisturbed."""
        run = self.start()
        _, said = run.communicate()
        assert run.returncode == 0, said.decode()
        self.look()

    def check(self) -> None:
        """Hold every table, row for row, against what was landed, and each log against itself."""
        rows, shop = self._rows, self.shop
        expected = sorted(((r["pos"], r["id"], r["k"], r["amount"]) for r in rows), key=repr)
        assert shop.rows("fact.orders", "pos", "id", "k", "amount") == expected
        newest = {row["k"]: row for row in rows}
        assert shop.rows("fact.latest", "k", "id") == sorted(
            ((k, r["id"]) for k, r in newest.items()), key=repr
        )
        good = sorted(((r["id"],) for r in rows if r["id"] % BAD != 3), key=repr)
        assert shop.rows("fact.checked", "id") == good
        for mart in self.marts:
            total = (len(rows), sum(r["amount"] for r in rows))
            assert shop.rows(mart, "n", "total") == [total]
        self._check_logs()

    def _check_logs(self) -> None:
        for topic in ("fact.orders", "fact.latest", "fact.checked", *self.marts):
            log = [entity["event_type"] for entity in self.shop.json_lines("logs", topic)]
            ends = log.count("task-completed") + log.count("task-failed")
            assert log.count("task-started") == ends, log
        latest = self.shop.json_lines("logs", "fact.checked", "--latest")
        waiting = [e["entity"]["id"] for e in latest if e["event_type"] == "write-error"]
        assert sorted(waiting) == [r["id"] for r in self._rows if r["id"] % BAD == 3]


@contextmanager
def reading(battered: Battered) -> Iterator[None]:
    """Read the marts all the time: once there, each is whole in every version that is seen."""
    stop, wrong, reads = threading.Event(), list[str](), [0]

    def read() -> None:
        seen: set[str] = set()
        while not stop.is_set():
            for mart in battered.marts:
                path = str(battered.shop.table(mart))
                if not DeltaTable.is_deltatable(path):
                    if mart in seen:
                        wrong.append(f"{mart} is gone")
                    continue
                table = DeltaTable(path).to_pyarrow_table()
                # It is created before its first load, which then fills it at once.
                if table.num_rows != 1 and (mart in seen or table.num_rows):
                    wrong.append(f"{mart} has {table.num_rows} rows")
                if table.num_rows:
                    seen.add(mart)
                reads[0] += 1
            stop.wait(0.05)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert reads[0] > 0
