"""How long a flow is left alone after a failure. A decision: nothing here waits or writes."""

from __future__ import annotations

from typing import Any

from tidegate.model.duration import MINUTE, SECOND
from tidegate.model.position import Offset

LONGEST_WAIT = 5 * MINUTE
LEAST_PATIENCE = MINUTE
"""So far the waits after failures grow at least, however often a flow is to run."""


def after_failures(failures: int, repeat: int) -> int:
    """Give the wait after so many failures of a definition, or over rows: 1 s, 2 s, 4 s …

    At most `repeat`, but no less than a minute and no more than five.
    """
    most = min(max(repeat, LEAST_PATIENCE), LONGEST_WAIT)
    return min(SECOND << min(max(failures - 1, 0), 20), most)


def while_away(held: Offset[Any]) -> int:
    """Give the wait after one more try in an outage: 1 s, 2 s, 4 s … five minutes, without end."""
    if held.away_since is None:
        return SECOND
    return min(max(2 * held.wait, SECOND), LONGEST_WAIT)
