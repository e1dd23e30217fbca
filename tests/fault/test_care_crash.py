"""A run that dies while it compacts a table leaves nothing to mend."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.projects import Folder, entries, orders

VIEW = "SELECT pos, id FROM stage.orders WHERE block(pos, id)"


@pytest.mark.long
def test_a_compaction_that_died_is_a_compaction(tmp_path: Path) -> None:
    shop = Folder(tmp_path)
    topic = {"table": "fact.orders", "depends_on": ["stage.orders"], "transforms": ["o"]}
    shop.write({"lineage.yaml": entries({**topic, "maxstep": 5}), "views/o.sql": VIEW})
    shop.land("stage.orders", orders((n, n) for n in range(15)))
    env = {**os.environ, "TIDEGATE__LAKE__COMPACT_FILES": "1"}
    died = shop.tidegate(
        "run", env={**env, "TIDEGATE_CRASHPOINT": "care.after_compaction"}, group=True
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert DeltaTable(shop.table("fact.orders")).history(1)[0]["operation"] == "OPTIMIZE"
    (held,) = shop.json("offsets", "show", "fact.orders")
    assert (held["last_pos"], held["next_pos"]) == (9, None)

    assert shop.tidegate("run", env=env).returncode == 0
    (offset,) = shop.json("offsets", "show", "fact.orders")
    assert (offset["state"], offset["last_pos"], offset["hostid"]) == ("DONE", 14, "")
    assert shop.rows("fact.orders", "id") == sorted(((n,) for n in range(15)), key=repr)
    states = {one["state"] for one in shop.json("executions") if one["operation"] == "maintain"}
    assert states == {"lost", "finished"}
