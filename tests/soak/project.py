"""The project of a soak: a chain of tables, rows that keep coming, and what must come of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.projects import SPARK_CONF, Folder, entries
from tidegate.model.position import Position

STAGE = "stage.orders"
LAND_EVERY_SECONDS = 2.0
ROWS_A_LANDING = 200
KEYS = 50
DEAD_AFTER_SECONDS = 10
CONTROL = f"""
heartbeat = "2s"
dead_after = "{DEAD_AFTER_SECONDS}s"
lease = "5s"
loop = "500ms"
accept_within = "10s"
# Killed in the midst of it a hundred times: no failure of the data.
pause_after = 1000
"""
TABLES: tuple[dict[str, Any], ...] = (
    {"table": "fact.orders", "depends_on": [STAGE], "transforms": ["orders"], "maxstep": 2000},
    {"table": "fact.doubled", "depends_on": ["fact.orders"], "transforms": ["doubled"]},
    {
        "table": "fact.latest",
        "depends_on": ["fact.orders"],
        "transforms": ["latest"],
        "keys": "k",
    },
    {
        "table": "mart.totals",
        "depends_on": ["fact.doubled"],
        "transforms": ["totals"],
        "processor": "reload",
    },
)
STEPS = ("fact.orders", "fact.doubled", "fact.latest")
VIEWS = {
    "views/orders.sql": f"SELECT pos, id, k, amount FROM {STAGE} WHERE block(pos, id)",
    "views/doubled.sql": "SELECT pos, id, k, amount * 2 AS twice FROM fact.orders"
    " WHERE block(pos, id)",
    "views/latest.sql": "SELECT pos, id, k, amount FROM fact.orders WHERE block(pos, id)",
    "views/totals.sql": "SELECT k, count(*) AS n, sum(twice) AS total FROM fact.doubled GROUP BY k",
}


def write_project(folder: Folder, store: str, bus: str) -> None:
    conf = {**SPARK_CONF, "spark.driver.memory": "1g"}
    settings = ", ".join(f'"{name}" = "{value}"' for name, value in conf.items())
    toml = f"[spark]\nconf = {{{settings}}}\n[control]{CONTROL}\n[store]\n{store}\n[bus]\n{bus}\n"
    tables = [{**table, "repeat": "1s"} for table in TABLES]
    folder.write({"tidegate.toml": toml, "lineage.yaml": entries(*tables), **VIEWS})


@dataclass
class Tide:
    """Rows that come, in the order of their positions."""

    folder: Folder
    random: Random
    landed: int = 0
    newest: Position = Position(0, 0)  # noqa: RUF009  (frozen)
    _next: float = 0.0

    def turn(self) -> None:
        """Land the next rows when it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LAND_EVERY_SECONDS
        pos = time.time_ns() // 1_000_000
        rows = [
            {
                "pos": pos,
                "id": self.landed + n + 1,
                "k": self.random.randrange(KEYS),
                "amount": self.random.randrange(1000),
            }
            for n in range(ROWS_A_LANDING)
        ]
        self.folder.land(STAGE, rows)
        self.landed += len(rows)
        self.newest = Position(pos, self.landed)


def differences(folder: Folder) -> list[str]:
    """Hold every table, row for row, against one SELECT over all that was landed."""
    stage = _read(folder, STAGE)
    doubled = _column(stage.drop_columns("amount"), "twice", pc.multiply(stage["amount"], 2))
    newest = stage.group_by("k").aggregate([("id", "max")]).rename_columns(["k", "id"])
    totals = doubled.group_by("k").aggregate([("id", "count"), ("twice", "sum")])
    expected = {
        "fact.orders": stage,
        "fact.doubled": doubled,
        "fact.latest": newest,
        "mart.totals": totals.rename_columns(["k", "n", "total"]),
    }
    return [wrong for name, want in expected.items() if (wrong := _differs(folder, name, want))]


def _differs(folder: Folder, name: str, expected: pa.Table) -> str:
    found = _read(folder, name, *expected.column_names)
    if found.num_rows != expected.num_rows:
        return f"{name} has {found.num_rows:,} rows and should have {expected.num_rows:,}"
    if not _sorted(found).equals(_sorted(expected.cast(found.schema))):
        return f"{name} has other rows than one SELECT over all that was landed"
    return ""


def _read(folder: Folder, name: str, *columns: str) -> pa.Table:
    table = DeltaTable(folder.table(name)).to_pyarrow_table(columns=list(columns) or None)
    return table.combine_chunks()


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.append_column(name, values)
