"""What `tidegate up` costs while there is nothing to do, beside Spark's own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bed import Options, judge, processor_seconds
from tidegate.cli.output import print_table
from tidegate.wiring import open_parts, read_project

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.py"
ROWS = "2000"
PATIENCE_SECONDS = 300.0
QUIET_SECONDS = 20.0
MEASURED_SECONDS = 40.0


def nothing_to_do(_options: Options) -> None:
    """Build the demo's shop, keep it up with nothing new coming, and measure when it is quiet.

    The bare figure is a Python process that wakes once a second, and does nothing then.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        shop = Path(folder) / "shop"
        given = {**os.environ, "TIDEGATE_DEMO_ROWS": ROWS}
        subprocess.run(
            [sys.executable, str(DEMO), str(shop)], env=given, check=True, capture_output=True
        )
        manager, worker, bare = _measure(shop)
    line = ("the demo", MEASURED_SECONDS, bare * 100, manager * 100, worker * 100)
    columns = ("project", "seconds", "bare %", "manager %", "worker's Python %")
    print_table(columns, [line], empty="")
    judge("of a core, %", (manager + worker) * 100, 2)


def _measure(shop: Path) -> tuple[float, float, float]:
    up = [sys.executable, "-m", "tidegate", "-C", str(shop), "up"]
    tick = [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(up, stdout=quiet, stderr=quiet, start_new_session=True) as manager,
        subprocess.Popen(tick) as bare,
    ):
        try:
            worker = _wait_until_quiet(shop)
            pids = (manager.pid, worker, bare.pid)
            before = [processor_seconds(pid) for pid in pids]
            time.sleep(MEASURED_SECONDS)
            after = [processor_seconds(pid) for pid in pids]
        finally:
            bare.kill()
            manager.send_signal(signal.SIGTERM)
    shares = [(late - early) / MEASURED_SECONDS for early, late in zip(before, after, strict=True)]
    return shares[0], shares[1], shares[2]


def _wait_until_quiet(shop: Path) -> int:
    """Wait until the worker is there and nothing was open for a while; give its process."""
    deadline, calm_since = time.monotonic() + PATIENCE_SECONDS, time.monotonic()
    with open_parts(read_project(shop)) as parts:
        while time.monotonic() < deadline:
            time.sleep(1)
            at_work = parts.store.executions.open()
            mine = [one for one in parts.store.instances.all() if one.works]
            if at_work or not mine:
                calm_since = time.monotonic()
            elif time.monotonic() - calm_since > QUIET_SECONDS:
                (worker,) = {one.pid for one in mine if one.pid is not None}
                return worker
    raise SystemExit("the demo's project did not come to rest")
