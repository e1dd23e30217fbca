"""Disks for tests: something else mounted where a folder is, for as long as a test needs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Have something else stand where a folder is; skip where that may not be done."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", *options, str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        # Where all is to be tried, that it cannot be is a failure.
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
