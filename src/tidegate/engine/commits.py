"""What the commits of a Delta table say: whose they are, and whether they changed its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable

_BOOKKEEPING = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}
    | {"CREATE TABLE", "ADD CONSTRAINT", "DROP CONSTRAINT", "CHANGE COLUMN", "ADD COLUMNS"}
    | {"COMPUTE STATS", "CLUSTER BY", "REORG", "UPGRADE PROTOCOL", "FSCK", "ADD FEATURE"}
)
"""Operations that leave a table's rows as they were."""
_RECENT = 20


def commits(found: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """Go through a table's commits, the newest first; most who ask want one of the last few."""
    recent = found.history(_RECENT)
    yield from recent
    if len(recent) == _RECENT:
        yield from found.history()[_RECENT:]


def data_version_of(found: DeltaTable) -> int:
    """Give the newest version that changed the rows of a table."""
    for commit in commits(found):
        if commit.get("operation") not in _BOOKKEEPING and _rows_changed(commit):
            return int(commit["version"])
    # Everything else was trimmed from the log: other data cannot be ruled out before this.
    return 0


def _rows_changed(commit: Mapping[str, Any]) -> bool:
    figures = commit.get("operationMetrics") or {}
    match commit.get("operation"):
        case "WRITE" if (commit.get("operationParameters") or {}).get("mode") == "Append":
            return figures.get("numOutputRows") != "0"
        case "MERGE":
            names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
            return any(figures.get(name) != "0" for name in names)
        case _:
            return True


def our_metadata(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read what a block wrote beside its rows; empty where somebody else wrote."""
    try:
        written = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return written if isinstance(written, dict) else {}


def rows_written(commit: Mapping[str, Any]) -> int | None:
    """Count the rows that a commit brought, as far as it says."""
    figures = commit.get("operationMetrics") or {}
    value = figures.get("numSourceRows", figures.get("numOutputRows"))
    return None if value is None else int(value)
