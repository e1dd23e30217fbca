"""Tidegate's own processes for tests: started, waited for by what can be seen, and cleared away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from tests.projects import Folder

T = TypeVar("T")
PATIENCE = 240.0
"""The machines are shared: how long a thing may take says little."""
QUICK = """
[control]
heartbeat = "1s"
dead_after = "4s"
lease = "3s"
loop = "300ms"
accept_within = "4s"
"""


def until(wanted: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """Wait until something is to be seen; a test's only way to wait for another process."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = wanted()
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError(what)


class Crew:
    """Processes in groups of their own, each with its output in a file."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._number = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tidegate(self, *arguments: str, **env: str) -> Member:
        command = [sys.executable, "-m", "tidegate", "-C", str(self.folder.path), *arguments]
        return self.start(command, env)

    def start(self, command: list[str], env: Mapping[str, str] | None = None) -> Member:
        self._number += 1
        log = self.folder.path / f"process-{self._number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        member = Member(process, log)
        self._stack.callback(member.kill)
        return member


class Member:
    """One of them."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> str:
        def found() -> str | None:
            assert self.process.poll() is None or text in self.said, self.said
            return self.said if text in self.said else None

        return until(found, f"{text!r} in:\n{self.said}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and give its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill the group, JVM and all; safe to call twice."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def wait_for_its_group(self) -> None:
        """Require that nothing is left; what has ended may take a moment to be cleared away."""
        until(self._group_is_gone, f"processes of the group {self.process.pid} are left", 10)

    def _group_is_gone(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False
