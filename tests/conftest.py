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
"""Folders whose tests all start one: a command, a worker, a cluster."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say of each test whether it needs a JVM, and let those that share one run one by one."""
    for item in items:
        shared = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
        folder = item.path.relative_to(HERE).parts[0]
        if shared or folder in ON_A_JVM:
            item.add_marker(pytest.mark.jvm)
        for name in shared:
            item.add_marker(pytest.mark.xdist_group(SHARED[name]))
