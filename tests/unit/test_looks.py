"""A look that is kept says what a fresh one would, whatever was done to the table meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.model.looks import Look
from tidegate.model.position import Position
from tidegate.spark.looks import Tables

NOW = 1_700_000_000_000


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(str(tmp_path), lambda: NOW)


def land(tables: Tables, *positions: int) -> None:
    rows = {name: pa.array(positions, pa.int64()) for name in ("pos", "id")}
    write_deltalake(tables.path("stage.s"), pa.table(rows), mode="append")


def look(tables: Tables) -> Look:
    return tables.look("stage.s", "pos", "id", data_version=True)


def test_a_table_that_is_not_there_is_looked_for_again(tables: Tables) -> None:
    assert not look(tables).exists
    land(tables, 1)
    assert look(tables).newest == Position(1, 1)


def test_a_table_that_grew_is_seen_so(tables: Tables) -> None:
    land(tables, 1)
    assert look(tables) == look(tables)
    land(tables, 7)
    assert (look(tables).newest, look(tables).version) == (Position(7, 7), 1)


def test_another_table_of_as_many_versions_in_its_place_is_seen(tables: Tables) -> None:
    land(tables, 9)
    assert look(tables).newest == Position(9, 9)
    shutil.rmtree(tables.path("stage.s"))
    land(tables, 3)
    assert (look(tables).newest, look(tables).version) == (Position(3, 3), 0)


def test_a_table_that_was_rolled_back_is_seen_so(tables: Tables, tmp_path: Path) -> None:
    land(tables, 1)
    shutil.copytree(tables.path("stage.s"), tmp_path / "copy")
    land(tables, 2)
    assert look(tables).newest == Position(2, 2)
    shutil.rmtree(tables.path("stage.s"))
    shutil.copytree(tmp_path / "copy", tables.path("stage.s"))
    assert look(tables).newest == Position(1, 1)
