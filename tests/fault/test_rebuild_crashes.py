"""A rebuild that is killed goes on where it was, and nobody ever reads half of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.projects import Folder, entries, orders
from tidegate.tables.rebuild import is_shadow

VIEW = "SELECT pos, id, k, amount * 0 + 2 AS factor FROM stage.orders WHERE block(pos, id)"
ROWS, PER_BLOCK = 40, 10
CRASHES = (
    # What a rebuild passes, in this order; each next one goes on from where the last one died.
    "rebuild.after_begin:1",
    "step.after_write:2",
    "block.before_commit:2",
    "rebuild.before_publish:1",
    "rebuild.after_publish:1",
    "rebuild.after_drop:1",
)


@contextmanager
def reading(shop: Folder) -> Iterator[set[tuple[float, ...]]]:
    """Read the table all the time, and keep which factors each look saw, and how many rows."""
    stop, seen = threading.Event(), set[tuple[float, ...]]()

    def look() -> None:
        while not stop.is_set():
            table = DeltaTable(shop.table("fact.orders")).to_pyarrow_table()
            seen.add((table.num_rows, *sorted(set(table.column("factor").to_pylist()))))
            stop.wait(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def rebuild(shop: Folder, point: str = "") -> int:
    env = {**os.environ, "TIDEGATE_CRASHPOINT": point}
    return shop.tidegate("rebuild", "fact.orders", env=env, group=True).returncode


def offset(shop: Folder) -> dict[str, Any]:
    (found,) = shop.json("offsets", "show", "fact.orders")
    return dict(found)


def is_of_a_rebuild(execution: dict[str, Any]) -> bool:
    """Tell whether an execution built what is beside, or published it."""
    return is_shadow(execution["flow_id"]) or execution["operation"] == "publish"


@pytest.mark.long
def test_dying_anywhere_a_rebuild_goes_on_and_is_published_whole(tmp_path: Path) -> None:
    shop = Folder(tmp_path)
    lineage = entries(
        {
            "table": "fact.orders",
            "depends_on": ["stage.orders"],
            "transforms": ["o"],
            "maxstep": PER_BLOCK,
        }
    )
    shop.write({"lineage.yaml": lineage, "views/o.sql": VIEW})
    landed = orders((n, n) for n in range(ROWS))
    shop.land("stage.orders", landed)
    assert shop.tidegate("run").returncode == 0
    last = offset(shop)["last_pos"]
    # A late row, which only a rebuild brings in.
    shop.land("stage.orders", orders([(3, 900)]))
    shop.write({"views/o.sql": VIEW.replace("+ 2", "+ 3").replace("k, ", "")})
    with reading(shop) as seen:
        for point in CRASHES:
            assert rebuild(shop, point) == -signal.SIGKILL, point
            assert offset(shop)["last_pos"] == last
        assert seen == {(ROWS, 2.0), (ROWS + 1, 3.0)}
        blocks = [
            execution
            for execution in shop.json("executions")
            if is_of_a_rebuild(execution) and execution["state"] == "finished"
        ]
        # Every row once into the shadow, and once with the publication.
        assert sum(execution["rows"] for execution in blocks) == 2 * (ROWS + 1)
        # The table's new columns are known, though the execution that wrote them died.
        shop.land("stage.orders", orders([(last + 1, 1000)]))
        assert shop.tidegate("run").returncode == 0
        assert [path.name for path in (tmp_path / "lake" / "fact").iterdir()] == ["orders"]
    assert seen <= {(ROWS, 2.0), (ROWS + 1, 3.0), (ROWS + 2, 3.0)}
    ids = sorted([(row["id"],) for row in landed] + [(900,), (1000,)], key=repr)
    assert shop.rows("fact.orders", "id") == ids
    assert [o["topic"] for o in shop.json("offsets", "show")] == ["fact.orders", "stage.orders"]
