"""Tidegate without the Delta transaction: what the harness has to catch, or it proves nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from tidegate.cli.app import main
from tidegate.model.position import Position
from tidegate.ports.outside import Recorded
from tidegate.spark import looks
from tidegate.spark.delta_log import commits, our_metadata
from tidegate.tables import loading, writes


def _no_transaction(_topic: str, _seq: int, metadata: str) -> dict[str, str]:
    return {"userMetadata": metadata}


def _never(*_: Any) -> bool:
    return False


def _by_metadata(tables: looks.Tables, table: str, writer: str) -> Recorded:
    """Tell what was written last, without Delta's help against a repeat."""
    found = tables.open(table)
    for commit in commits(found) if found else ():
        written = our_metadata(commit)
        if written.get("topic") == writer:
            return Recorded(
                written["seq"],
                Position(*written["last"]),
                Position(*written["next"]),
                int(commit["version"]),
                written["execution"],
            )
    return Recorded(0)


if __name__ == "__main__":
    with (
        patch.object(writes, "transaction", _no_transaction),
        patch.object(loading, "already_loaded", _never),
        patch.object(looks.Tables, "recorded", _by_metadata),
    ):
        main()
