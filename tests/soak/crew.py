"""`up` and two more workers, each started again when it ends, as a supervisor would."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.control.processes import Crew, Member

AGAIN_SECONDS = 1.0
PATIENCE_SECONDS = 180.0
ROLES: dict[str, tuple[str, ...]] = {
    "up": ("up", "--slots", "1"),
    "b": ("worker", "--name", "b", "--slots", "1"),
    "c": ("worker", "--name", "c", "--slots", "1"),
}
"""Three workers: the child of `up` is the first."""


@dataclass
class Place:
    """What runs in one role now."""

    member: Member
    ended_at: float | None = None


class Supervised:
    """Processes that are kept alive until they are stopped."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.places = {role: Place(crew.tidegate(*command)) for role, command in ROLES.items()}
        self.starts = len(self.places)

    def turn(self) -> None:
        """Start what has ended a moment ago."""
        for role, place in self.places.items():
            if place.member.process.poll() is None:
                continue
            place.ended_at = place.ended_at or time.monotonic()
            if time.monotonic() - place.ended_at >= AGAIN_SECONDS:
                self.places[role] = Place(self._crew.tidegate(*ROLES[role]))
                self.starts += 1

    def stop(self) -> dict[str, int]:
        """Ask all of them to end, and give their exit codes."""
        members = {role: place.member for role, place in self.places.items()}
        for member in members.values():
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGTERM)
        return {role: member.process.wait(PATIENCE_SECONDS) for role, member in members.items()}


def left_over(folder: Path) -> dict[int, str]:
    """Give the processes, JVMs too, that have to do with a project: its path is on their line."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    lines = {pid: command_line(pid) for pid in numbers if pid != os.getpid()}
    return {pid: line for pid, line in lines.items() if str(folder) in line}


def command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")
