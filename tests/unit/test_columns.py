"""Which differences between a view and its table are harmless."""

from __future__ import annotations

from tidegate.tables.writes import compare

TABLE = {"pos": "bigint", "id": "bigint", "Amount": "double"}


def test_a_new_column_is_added_and_case_does_not_count() -> None:
    difference = compare({**TABLE, "AMOUNT": "double", "note": "string"}, TABLE, TABLE)
    assert difference.added == ("note",)
    assert difference.misfits == ()


def test_a_type_that_changed_and_a_column_that_is_gone_do_not_fit() -> None:
    difference = compare({"pos": "bigint", "id": "int"}, TABLE, TABLE)
    assert difference.misfits == ("id was bigint and is int now", "Amount is gone")


def test_columns_that_the_view_never_gave_are_not_missed() -> None:
    before = {"pos": "bigint", "id": "bigint"}
    assert compare(before, TABLE, before).misfits == ()
    assert compare(before, TABLE, None).misfits == ("Amount is gone",)
