"""What a kind leaves in the store with a commit, as data: an update, and what it is conditional on.

The commit applies each in its own transaction, by one function of the store for each sort
(`store/records.py`), and knows no kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measures:
    """What a load saw of its own rows: adds a row to `etl_log`."""

    query_id: str
    rows: int
    max_id: int | None = None
    min_ts: int | None = None
    max_ts: int | None = None
    nulls: Mapping[str, int] | None = None
    figures: Mapping[str, Any] | None = None
    """What the table's own log query gave for the block."""


@dataclass(frozen=True)
class Columns:
    """The columns that the flow gave, with their types: its row keeps them."""

    columns: Mapping[str, str]


@dataclass(frozen=True)
class Vacuumed:
    """The table was vacuumed, or that was tried: its row keeps when."""


@dataclass(frozen=True)
class Mended:
    """The flow is no longer stale for a reason, *if it is still stale for that one*."""

    stale: str


@dataclass(frozen=True)
class MadeStale:
    """Flows that no longer agree with what was written, each with what to say of it."""

    reasons: Mapping[str, str]


@dataclass(frozen=True)
class TookPlace:
    """What was built beside is the flow's own now: its failing rows come along, the rest goes."""

    shadow: str


Record = Measures | Columns | Vacuumed | Mended | MadeStale | TookPlace
