"""How many random examples a test takes: the same ones at every run, or many new ones on request.

TIDEGATE_EXAMPLES=20 takes twenty times as many, and others at every run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("TIDEGATE_EXAMPLES", "1"))


def examples(count: int) -> settings:
    return settings(
        max_examples=count * _TIMES,
        derandomize=_TIMES == 1,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
