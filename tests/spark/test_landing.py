"""Landing: rows of any flow come into a table of the lake, each batch exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.conftest import forget_tables
from tidegate.errors import FlowFailed, TopicStopped
from tidegate.ports.outside import Batch, LandedBatch
from tidegate.runtime import RealRuntime
from tidegate.spark.landing import DeltaLanding
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost

TABLE = "stage.customers"
POS = 1_700_000_000_000


class Place:
    """A lake to land in."""

    def __init__(self, folder: Path, spark: SparkHost) -> None:
        self.folder = folder
        self.spark = spark
        runtime = RealRuntime()
        self.tables = Tables(str(folder), runtime.now, {})
        self.known: int | None = None
        self.landing = DeltaLanding(spark, self.tables, runtime, lambda _: self.known)

    def land(
        self, seq: int, rows: Any, *, keys: Sequence[str] = (), pos: int = 0, writer: str = "crm"
    ) -> LandedBatch:
        batch = Batch(
            TABLE, writer, seq, pos or POS + seq, POS + seq, f"run {seq}", keys=tuple(keys)
        )
        try:
            return self.landing.land(batch, rows)
        finally:
            self.spark.forget(f"run {seq}")

    def sql(self, text: str) -> Any:
        return self.spark.fresh().sql(text)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.folder / "stage" / "customers")

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = self.delta.to_pyarrow_table(columns=list(columns))
        return sorted(zip(*(found.column(c).to_pylist() for c in columns), strict=True), key=repr)


@pytest.fixture
def place(tmp_path: Path, spark: SparkHost) -> Iterator[Place]:
    yield Place(tmp_path, spark)
    forget_tables(spark)


def customers(*rows: tuple[Any, ...], names: Sequence[str] = ("_id", "name")) -> pa.Table:
    return pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})


class TestAppend:
    def test_every_row_gets_the_pos_of_its_batch_and_an_id_of_its_own(self, place: Place) -> None:
        landed = place.land(1, customers(("a", "Ann"), ("b", "Ben")))
        assert (landed.rows, landed.skipped) == (2, False)
        assert place.rows("_id", "name", "pos") == [("a", "Ann", POS + 1), ("b", "Ben", POS + 1)]
        ids = [id for (id,) in place.rows("id")]
        assert len(set(ids)) == 2
        assert (landed.landed.last.pos, landed.landed.last.id) == (POS + 1, max(ids))
        assert landed.landed.complete_to == POS + 1

    def test_a_batch_that_is_landed_twice_is_there_once(self, place: Place) -> None:
        rows = customers(("a", "Ann"))
        first = place.land(1, rows)
        again = place.land(1, rows)
        assert (again.skipped, again.rows, again.landed) == (True, 1, first.landed)
        assert place.rows("_id") == [("a",)]

    def test_two_writers_count_for_themselves(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        place.land(1, customers(("b", "Ben")), writer="other", pos=POS + 2)
        assert place.rows("_id", "pos") == [("a", POS + 1), ("b", POS + 2)]

    def test_an_older_batch_than_the_table_holds_is_refused(self, place: Place) -> None:
        place.land(2, customers(("a", "Ann")))
        with pytest.raises(TopicStopped, match="restored from an old copy"):
            place.land(1, customers(("b", "Ben")))
        assert place.rows("_id") == [("a",)]

    def test_a_batch_that_was_declared_at_another_pos_is_refused(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        with pytest.raises(TopicStopped, match="landed at pos"):
            place.land(1, customers(("a", "Ann")), pos=POS + 9)

    def test_rows_behind_those_of_another_writer_are_refused(self, place: Place) -> None:
        place.land(1, customers(("b", "Ben")), writer="other", pos=POS + 5)
        with pytest.raises(TopicStopped, match="let one flow alone land in a table"):
            place.land(1, customers(("a", "Ann")), pos=POS + 3)
        assert place.rows("_id") == [("b",)]

    def test_an_empty_batch_lands_and_is_recorded(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        empty = customers().cast(pa.schema([("_id", pa.string()), ("name", pa.string())]))
        landed = place.land(2, empty)
        assert (landed.rows, landed.landed.last) == (0, (POS + 2, -1))
        assert place.land(2, empty).skipped

    def test_nothing_without_columns_makes_no_table(self, place: Place) -> None:
        landed = place.land(1, pa.table({}))
        assert landed.rows == 0
        assert not place.tables.exists(TABLE)

    def test_rows_of_spark_land_as_well(self, place: Place) -> None:
        rows = place.spark.fresh("run 1").range(3).selectExpr("id AS number")
        assert place.land(1, rows).rows == 3
        assert place.rows("number") == [(0,), (1,), (2,)]

    def test_steps_read_the_table_by_its_name(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        assert place.sql(f"SELECT name FROM {TABLE}").collect() == [("Ann",)]


class TestPos:
    def test_it_is_now_and_never_back(self, place: Place) -> None:
        ahead = RealRuntime().now() + 1_000_000
        place.land(1, customers(("a", "Ann")), pos=ahead)
        assert place.landing.pos_for(TABLE) == ahead + 1

    def test_what_the_store_believes_counts_too(self, place: Place) -> None:
        place.known = RealRuntime().now() + 5_000_000
        assert place.landing.pos_for(TABLE) == place.known + 1

    def test_of_a_table_that_is_not_there_it_is_now(self, place: Place) -> None:
        before = RealRuntime().now()
        assert before <= place.landing.pos_for(TABLE) <= RealRuntime().now()

    def test_a_source_with_a_pos_of_its_own_keeps_it(self, place: Place) -> None:
        landed = place.land(1, customers((7, "Ann"), names=("pos", "name")))
        assert place.rows("pos", "_pos", "name") == [(7, POS + 1, "Ann")]
        assert landed.landed.last.pos == POS + 1
        assert place.landing.pos_for(TABLE) > POS + 1


class TestKeys:
    def test_a_newer_version_takes_the_place_of_the_older(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann"), ("b", "Ben")), keys=["_id"])
        place.land(2, customers(("a", "Anna")), keys=["_id"])
        assert place.rows("_id", "name", "pos") == [
            ("a", "Anna", POS + 2),
            ("b", "Ben", POS + 1),
        ]

    def test_a_row_that_has_not_changed_is_not_written(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann"), ("b", "Ben")), keys=["_id"])
        landed = place.land(2, customers(("a", "Ann"), ("b", "Bea")), keys=["_id"])
        assert landed.rows == 1
        assert place.rows("_id", "pos") == [("a", POS + 1), ("b", POS + 2)]

    def test_nothing_new_is_recorded_too(self, place: Place) -> None:
        rows = customers(("a", "Ann"))
        place.land(1, rows, keys=["_id"])
        assert place.land(2, rows, keys=["_id"]).rows == 0
        assert place.land(2, rows, keys=["_id"]).skipped

    def test_of_one_key_in_a_batch_the_newest_stays(self, place: Place) -> None:
        names = ("_id", "name", "_updated")
        place.land(1, customers(("a", "old", 1), ("a", "new", 2), names=names), keys=["_id"])
        assert place.rows("_id", "name") == [("a", "new")]

    def test_two_rows_of_one_key_that_differ_fail_the_batch(self, place: Place) -> None:
        with pytest.raises(FlowFailed, match=r'key \{"_id":"a"\} and differ'):
            place.land(1, customers(("a", "one"), ("a", "other")), keys=["_id"])

    def test_null_is_a_key_like_others(self, place: Place) -> None:
        place.land(1, customers((None, "Ann"), ("b", "Ben")), keys=["_id"])
        place.land(2, customers((None, "Anna")), keys=["_id"])
        assert place.rows("_id", "name") == [("b", "Ben"), (None, "Anna")]

    def test_a_column_that_rows_lack_is_null(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann", "x"), names=("_id", "name", "city")), keys=["_id"])
        place.land(2, customers(("a", "Anna")), keys=["_id"])
        assert place.rows("_id", "name", "city") == [("a", "Anna", None)]

    def test_a_new_column_changes_no_row_that_lacks_it(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann"), ("b", "Ben")), keys=["_id"])
        names = ("_id", "name", "city")
        landed = place.land(
            2, customers(("a", "Ann", None), ("b", "Ben", "Bonn"), names=names), keys=["_id"]
        )
        assert landed.rows == 1
        assert place.rows("_id", "city", "pos") == [("a", None, POS + 1), ("b", "Bonn", POS + 2)]

    def test_rows_without_their_key_fail_the_batch(self, place: Place) -> None:
        with pytest.raises(FlowFailed, match="have no column _id"):
            place.land(1, customers(("Ann",), names=("name",)), keys=["_id"])


class TestColumns:
    def test_new_ones_are_added(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        place.land(2, customers(("b", "Ben", 3), names=("_id", "name", "orders")))
        assert place.rows("_id", "orders") == [("a", None), ("b", 3)]

    def test_one_of_another_type_fails_the_batch_and_says_which(self, place: Place) -> None:
        place.land(1, customers(("a", 1), names=("_id", "orders")))
        with pytest.raises(FlowFailed, match="orders is bigint there and comes as string"):
            place.land(2, customers(("b", "many"), names=("_id", "orders")))
        assert place.rows("_id") == [("a",)]

    def test_a_narrower_type_fits(self, place: Place) -> None:
        place.land(1, customers(("a", 1), names=("_id", "orders")))
        small = pa.table({"_id": ["b"], "orders": pa.array([2], pa.int32())})
        place.land(2, small)
        assert place.rows("_id", "orders") == [("a", 1), ("b", 2)]

    def test_one_that_holds_nothing_yet_waits_for_its_type(self, place: Place) -> None:
        place.land(1, pa.table({"_id": ["a"], "city": pa.nulls(1)}))
        assert "city" not in place.tables.column_names(TABLE)
        place.land(2, customers(("b", "Bonn"), names=("_id", "city")))
        assert place.rows("_id", "city") == [("a", None), ("b", "Bonn")]

    def test_nested_ones_may_grow(self, place: Place) -> None:
        place.land(1, customers(("a", {"city": "Bonn"}), names=("_id", "home")))
        grown = {"zip": "50667", "city": "Cologne"}
        place.land(2, customers(("b", grown), names=("_id", "home")))
        assert place.rows("_id", "home") == [
            ("a", {"city": "Bonn", "zip": None}),
            ("b", {"city": "Cologne", "zip": "50667"}),
        ]

    def test_case_does_not_make_a_second_one(self, place: Place) -> None:
        place.land(1, customers(("a", "Ann")))
        place.land(2, customers(("b", "Ben"), names=("_ID", "NAME")))
        assert place.rows("_id", "name") == [("a", "Ann"), ("b", "Ben")]

    def test_a_name_of_ours_is_refused(self, place: Place) -> None:
        with pytest.raises(FlowFailed, match="have a column _hash of their own"):
            place.land(1, customers(("a", 1), names=("_id", "_hash")), keys=["_id"])

    def test_the_table_that_a_person_made_is_kept(self, place: Place) -> None:
        made = pa.table(
            {
                "_id": pa.array([], pa.string()),
                "name": pa.array([], pa.string()),
                "pos": pa.array([], pa.int64()),
                "id": pa.array([], pa.int64()),
                "note": pa.array([], pa.string()),
            }
        )
        write_deltalake(place.folder / "stage" / "customers", made)
        place.land(1, customers(("a", "Ann")))
        assert place.rows("_id", "name", "note", "pos") == [("a", "Ann", None, POS + 1)]


def test_who_loses_a_race_believes_what_is_recorded(place: Place) -> None:
    """The answer to a write was lost: what the table's log says decides."""
    rows = customers(("a", "Ann"))
    landing = place.landing

    class Cut(DeltaLanding):
        def _write(self, batch: Batch, rows: Any) -> None:
            super()._write(batch, rows)
            raise ConnectionResetError("the answer was lost")

    place.landing = Cut(place.spark, place.tables, RealRuntime(), lambda _: None)
    assert place.land(1, rows).rows == 1
    place.landing = landing
    assert place.land(1, rows).skipped
    assert place.rows("_id") == [("a",)]
    assert replace(place.land(1, rows), skipped=False).rows == 1
