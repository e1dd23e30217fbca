"""What keeps the promises: each can be taken away, and then the plays must fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Guard(Enum):
    """A guard, and what it stops."""

    TERM = "term on leader writes"
    ACCEPT = "accept"
    CLAIM = "claim"
    COMMIT = "conditional commit"
    BLOCK = "declared block"
    TRANSACTION = "transaction version"


@contextmanager
def without(guard: Guard | None) -> Iterator[None]:
    """Take a guard out of the code for as long as the block lasts."""
    yield
