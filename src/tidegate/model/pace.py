"""How often, how long, how many: the figures that the control plane keeps to."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.model.duration import DAY, SECOND


@dataclass(frozen=True)
class Pace:
    """All times in milliseconds."""

    heartbeat: int = 5 * SECOND
    dead_after: int = 15 * SECOND
    lease: int = 10 * SECOND
    loop: int = SECOND
    accept_within: int = 10 * SECOND
    drain: int = 60 * SECOND
    """How long a worker that stops waits for its work, before it hands it back."""
    forget_after: int = DAY
    """How long an instance that left is remembered."""
    retention: int = 180 * SECOND
    """How long a message is kept that nobody took."""
    max_parallel: int | None = None
    pause_after: int = 10
    """So many failures in a row stop a topic until a person resumes it."""
