"""A Spark that stops by itself in a JVM that lives on, as when its threads run out of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.projects import Folder, entries, orders

STOPPED = """
import json, sys
from pathlib import Path
from tidegate.cli.running import NoProgress
from tidegate.cli.project import apply_changes, changes_of
from tidegate.wiring import open_parts, read_project

with open_parts(read_project(Path(sys.argv[1]))) as parts, parts.spark() as spark:
    apply_changes(parts, changes_of(parts))
    parts.holders.hold()
    session = spark.fresh()
    before = spark.works()
    session.sparkContext._jsc.sc().stop()
    lived = spark.lives()
    report = parts.foreground(spark, NoProgress()).run({"fact.orders"})
    offset = parts.store.offsets.get("fact.orders")
    print(json.dumps({
        "before": before,
        "lived": lived,
        "lives": spark.lives(),
        "ends": [(one.state, one.comment) for one in report.executions],
        "failures": offset.failures,
        "held by": offset.hostid,
    }))
"""


def test_a_spark_that_has_stopped_is_no_fault_of_the_topic(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    table = {"table": "fact.orders", "depends_on": "stage.orders", "transforms": "orders"}
    view = "SELECT pos, id FROM stage.orders WHERE block(pos, id)"
    folder.write({"lineage.yaml": entries(table), "views/orders.sql": view})
    folder.land("stage.orders", orders([(1, 1), (2, 2)]))
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "before": True,
        # Nobody has asked it yet.
        "lived": True,
        "lives": False,
        "ends": [["lost", "lost: Spark is gone"]],
        "failures": 0,
        "held by": "",
    }
