"""Tables kept open are what a fresh look would find, whatever was done to them meanwhile."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tidegate.spark.delta_log import MOST_KEPT, Handles


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def handles() -> Handles:
    return Handles({})


def append(path: str, *ids: int) -> None:
    write_deltalake(path, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def test_one_that_has_not_changed_is_the_same_and_one_that_grew_is_read_on(
    handles: Handles, path: str
) -> None:
    append(path, 1)
    first = handles.open(path)
    assert handles.open(path) is first
    append(path, 2)
    append(path, 3)
    again = handles.open(path)
    assert again is first
    assert (again.version(), ids(again)) == (2, [1, 2, 3])


def test_another_table_in_its_place_is_not_taken_for_it(handles: Handles, path: str) -> None:
    for number in range(3):
        append(path, number)
    assert ids(handles.open(path)) == [0, 1, 2]
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        handles.open(path)
    for number in range(10, 15):
        append(path, number)
    assert ids(handles.open(path)) == [10, 11, 12, 13, 14]


def test_one_that_was_rolled_back_is_found_so(handles: Handles, path: str, tmp_path: Path) -> None:
    append(path, 1)
    shutil.copytree(path, tmp_path / "copy")
    append(path, 2)
    assert ids(handles.open(path)) == [1, 2]
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    assert ids(handles.open(path)) == [1]
    append(path, 3)
    assert ids(handles.open(path)) == [1, 3]


def test_each_thread_has_its_own(handles: Handles, path: str) -> None:
    append(path, 1)
    others: list[DeltaTable] = []
    thread = threading.Thread(target=lambda: others.append(handles.open(path)))
    thread.start()
    thread.join()
    assert handles.open(path) is not others[0]


def test_no_more_are_kept_than_there_is_room_for(handles: Handles, tmp_path: Path) -> None:
    paths = [str(tmp_path / str(number)) for number in range(MOST_KEPT + 1)]
    for each in paths:
        append(each, 1)
    first, *_, last = [handles.open(each) for each in paths]
    assert handles.open(paths[-1]) is last
    assert handles.open(paths[0]) is not first
