"""What is done to the processes: killed in three ways or stopped for too long, by a seed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.soak.crew import Supervised, command_line

EVERY_SECONDS = 15.0
TARGETS = ("up", "the child of up", "b", "c")
DEEDS = ("kill the group", "kill Python", "kill the JVM", "stop")


@dataclass
class Mischief:
    """Strikes one process after the other."""

    random: Random
    stop_seconds: float
    done: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + EVERY_SECONDS)
    _stopped: list[tuple[float, int]] = field(default_factory=list)
    """When to let it go on, and its number."""

    def turn(self, supervised: Supervised) -> str:
        """Do what is due; say what it was."""
        self._go_on(time.monotonic())
        if time.monotonic() < self._next:
            return ""
        self._next += EVERY_SECONDS
        # Both drawn each time: the same seed makes the same choices, whatever is there to be hit.
        target, deed = self.random.choice(TARGETS), self.random.choice(DEEDS)
        pid = _pid_of(target, supervised)
        if pid is None:
            return f"{target} is not there"
        self.done += 1
        return f"{self._strike(pid, deed)} of {target} ({pid})"

    def end(self) -> None:
        """Let all go on that are stopped."""
        self._go_on(float("inf"))

    def _strike(self, pid: int, deed: str) -> str:
        jvms = [child for child in _children(pid) if "java" in command_line(child).split(" ")[0]]
        if deed == "kill the JVM" and not jvms:
            # A manager has none, a worker that has just started not yet.
            deed = "kill Python"
        with suppress(ProcessLookupError):
            match deed:
                case "kill the group":
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
                case "kill Python":
                    os.kill(pid, signal.SIGKILL)
                case "kill the JVM":
                    os.kill(jvms[0], signal.SIGKILL)
                case _:
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.append((time.monotonic() + self.stop_seconds, pid))
        return deed

    def _go_on(self, now: float) -> None:
        for at, pid in list(self._stopped):
            if at <= now:
                self._stopped.remove((at, pid))
                # Its leader may have killed it: then the number is nobody's, or another's.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def _pid_of(target: str, supervised: Supervised) -> int | None:
    place = supervised.places["up" if target == "the child of up" else target]
    process = place.member.process
    if process.poll() is not None:
        return None
    if target != "the child of up":
        return process.pid
    workers = [child for child in _children(process.pid) if "--child" in command_line(child)]
    return next(iter(workers), None)


def _children(pid: int) -> Iterable[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [
            int(child) for thread in threads for child in (thread / "children").read_text().split()
        ]
    except OSError:
        return []
