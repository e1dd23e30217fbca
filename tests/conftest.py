"""What holds for every test."""

from pathlib import Path

import pytest
from hypothesis import settings

# The machines are shared: a slow example says nothing. The same examples each time, so that a
# change fails by what it changed.
settings.register_profile("tidegate", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tidegate")

HERE = Path(__file__).parent
LONG_ONES = ("spark", "fault", "control", "property", "simulation")
"""Folders whose tests take longest: two processes take test by test, so these come first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the long ones begin."""
    items.sort(key=lambda item: item.path.relative_to(HERE).parts[0] not in LONG_ONES)
