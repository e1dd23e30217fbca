"""What holds for every test: examples, which of them start a JVM, and who shares one."""

from pathlib import Path

import pytest
from hypothesis import settings

# The machines are shared: a slow example says nothing. The same examples each time, so that a
# change fails by what it changed.
settings.register_profile("tidegate", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tidegate")

HERE = Path(__file__).parent
SHARED = {"spark": "spark", "broker": "broker"}
"""Fixtures that cost seconds to start, and the group of tests that has one of them."""
ON_A_JVM = ("spark", "fault", "places")
"""Folders whose tests all start a JVM: a command, a worker, a cluster. So do crews of processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say of each test whether it needs a JVM, and let those that share one run one by one."""
    for item in items:
        groups = _groups(item)
        folder = item.path.relative_to(HERE).parts[0]
        if groups or folder in ON_A_JVM or "crew" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)
        for group in groups:
            item.add_marker(pytest.mark.xdist_group(group))


def _groups(item: pytest.Item) -> list[str]:
    """Name what a test shares with others: by its fixtures, or by the back end it is run over."""
    named = {SHARED[name] for name in getattr(item, "fixturenames", ()) if name in SHARED}
    over = getattr(item, "callspec", None)
    if over is not None and "kafka" in over.params.values():
        named.add("broker")
    return sorted(named)
