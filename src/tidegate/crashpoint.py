"""Named places where a test can let the process die, free unless the environment names one.

TIDEGATE_CRASHPOINT is `name`, `name:hit` or `name:hit:action`: the point, at which passing of it
(1 by default), and what happens there: `group` kills the process group (the default), `python`
kills this process alone and leaves its JVM, `stop` stops this process until somebody continues it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_NAMED = os.environ.get("TIDEGATE_CRASHPOINT", "")
_passed: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    """Die here, if the environment says so."""
    if not _NAMED:
        return
    point, hit, action = (*_NAMED.split(":"), "", "")[:3]
    _passed[name] += 1
    if name != point or _passed[name] != int(hit or 1):
        return
    match action or "group":
        case "group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "python":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case unknown:
            raise ValueError(f"TIDEGATE_CRASHPOINT: unknown action {unknown!r}")
