"""What holds for every test."""

from pathlib import Path

import pytest
from hypothesis import settings

# The machines are shared: a slow example says nothing. The same examples each time, so that a
# change fails by what it changed.
settings.register_profile("tidegate", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tidegate")

TOGETHER = ("spark", "contract")
"""Folders whose tests share something that takes long to start: one Spark, one PostgreSQL."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests out to two processes: the long ones first, each file or folder to one."""
    here = Path(__file__).parent

    def folder(item: pytest.Item) -> str:
        return item.path.relative_to(here).parts[0]

    items.sort(
        key=lambda item: ("spark", "fault", "control", "property").count(folder(item)), reverse=True
    )
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item, folder(item))))


def _group(item: pytest.Item, folder: str) -> str:
    if folder in TOGETHER:
        return folder
    return item.nodeid if folder == "fault" else str(item.path)
