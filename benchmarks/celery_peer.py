"""The peer of `executions`: tasks that do nothing, by Celery on Redis, their results kept."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from celery import Celery, group

from benchmarks.bed import children_of, processor_seconds

PORT_VARIABLE = "TIDEGATE_BENCH_REDIS_PORT"
PATIENCE_SECONDS = 60.0
WARM, MEASURED = 500, 1_500
_INSTALL = ["apt-get", "install", "-y", "-qq", "redis-server"]


def _app() -> Celery:
    url = f"redis://127.0.0.1:{os.environ.get(PORT_VARIABLE, '6379')}"
    return Celery("benchmarks.celery_peer", broker=f"{url}/0", backend=f"{url}/1")


app = _app()


@app.task(name="nothing")  # type: ignore[untyped-decorator]
def nothing() -> None:
    """Do nothing; that it was done is kept for an hour or more."""


@dataclass(frozen=True)
class Rate:
    """What was brought to its end."""

    per_second: float
    processor_ms: float
    """Of all processes that had a part in it, for each."""


@contextmanager
def celery(at_once: int) -> Iterator[Callable[[], Rate] | None]:
    """Give what times tasks, so many under way at a time; None, and a word why, without Redis.

    Server and worker stay up between two calls, where they cost next to nothing.
    """
    if not _has_redis():
        print("redis-server is not there and cannot be installed, so Celery was not measured")
        yield None
        return
    port = _free_port()
    os.environ[PORT_VARIABLE] = str(port)
    app.conf.update(
        broker_url=f"redis://127.0.0.1:{port}/0", result_backend=f"redis://127.0.0.1:{port}/1"
    )
    with _redis(port) as redis, _worker() as worker:
        _run(WARM, at_once)
        yield lambda: _timed(at_once, (os.getpid(), redis, worker, *children_of(worker)))


def _timed(at_once: int, all_of_it: Sequence[int]) -> Rate:
    begin, used = time.perf_counter(), processor_seconds(*all_of_it)
    _run(MEASURED, at_once)
    spent, used = time.perf_counter() - begin, processor_seconds(*all_of_it) - used
    return Rate(MEASURED / spent, used / MEASURED * 1000)


def _run(tasks: int, at_once: int) -> None:
    """Send tasks and wait for their results, in bunches as large as we have instances."""
    for start in range(0, tasks, at_once):
        sent = group(nothing.s() for _ in range(min(at_once, tasks - start))).apply_async()
        sent.get(timeout=PATIENCE_SECONDS)


def _has_redis() -> bool:
    if shutil.which("redis-server") is None and os.getuid() == 0 and shutil.which("apt-get"):
        subprocess.run(_INSTALL, capture_output=True, check=False)
    return shutil.which("redis-server") is not None


@contextmanager
def _redis(port: int) -> Iterator[int]:
    """Run a server of our own, as it comes but for its port and folder."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-redis-") as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        with _ended(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as pid:
            _wait_for(port)
            yield pid


@contextmanager
def _worker() -> Iterator[int]:
    """Run a worker with a process for each core, as it comes."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_peer", "worker"]
    away = subprocess.DEVNULL
    with _ended(
        subprocess.Popen([*command, "--loglevel", "ERROR"], stdout=away, stderr=away)
    ) as pid:
        yield pid


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[int]:
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("redis-server did not start")
