"""What goes wrong in one topic is said in one sentence, moves nothing, and stops no other."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from tests.mounts import mounted
from tests.projects import entries, orders
from tests.spark.conftest import Shop
from tidegate.model.execution import Execution
from tidegate.ports.kinds import Report

GOOD = {"table": "fact.good", "depends_on": ["stage.orders"], "transforms": ["good"]}
GOOD_VIEW = "SELECT pos, id, amount FROM stage.orders WHERE block(pos, id)"


def bad(shop: Shop, view: str, **fields: Any) -> Report:
    """Run a topic that fails beside one that does not."""
    entry = {"table": "fact.bad", "depends_on": ["stage.orders"], "transforms": ["bad"], **fields}
    shop.write(
        {"lineage.yaml": entries(entry, GOOD), "views/bad.sql": view, "views/good.sql": GOOD_VIEW}
    )
    if not shop.table("stage.orders").exists():
        shop.land("stage.orders", orders((n, n) for n in range(10)))
    return shop.run()


def failure(report: Report) -> Execution:
    failed = [execution for execution in report.executions if execution.state == "failed"]
    assert len(failed) == 1, report.executions
    assert "\n" not in failed[0].comment
    return failed[0]


@pytest.mark.parametrize(
    ("view", "fields", "words"),
    [
        (GOOD_VIEW.replace("amount", "1 / (id - id) AS x"), {}, "Division by zero"),
        (GOOD_VIEW.replace("amount", "nothing"), {}, "nothing"),
        (GOOD_VIEW.replace("pos, id,", "pos + 1 AS pos, id,"), {"keys": "amount"}, "outside of"),
        (
            GOOD_VIEW,
            {"checks": {"small": "amount < 5"}, "max_failed_rows": 4},
            "5 rows at least fail (5 × the check small (amount < 5) is not true), more than",
        ),
        (GOOD_VIEW, {"after": "SELECT raise_error('oh')"}, "after"),
        (GOOD_VIEW.replace("amount", "NULL AS empty"), {}, "CAST"),
    ],
)
def test_a_view_that_fails(shop: Shop, view: str, fields: dict[str, Any], words: str) -> None:
    report = bad(shop, view, **fields)
    assert words in failure(report).comment
    assert failure(report).topic == "fact.bad"
    offset = next(row for row in shop.json("offsets", "show", "fact.bad"))
    assert (offset["last_pos"], offset["last_id"], offset["hostid"]) == (0, -1, "")
    assert offset["state"] == "FAILED"
    if "after" not in fields:
        assert shop.rows("fact.bad", "id") == []
    assert len(shop.rows("fact.good", "id")) == 10


def test_a_mended_view_finishes_the_block_that_failed(shop: Shop) -> None:
    bad(shop, GOOD_VIEW.replace("amount", "amount / (id - id) AS amount"))
    declared = shop.json("offsets", "show", "fact.bad")[0]
    shop.land("stage.orders", orders((n, n) for n in range(10, 12)))
    report = bad(shop, GOOD_VIEW)
    assert not report.failed
    first = next(e for e in report.executions if e.topic == "fact.bad")
    assert (first.rows, first.attempt) == (10, 2)
    assert declared["next_pos"] == 9
    assert [row[0] for row in shop.rows("fact.bad", "id")] == sorted(range(12), key=repr)


def test_an_after_that_fails_is_run_again_alone(shop: Shop) -> None:
    bad(shop, GOOD_VIEW, after="SELECT raise_error('oh')")
    assert len(shop.rows("fact.bad", "id")) == 10
    report = bad(shop, GOOD_VIEW, after="SELECT 1")
    assert not report.failed
    assert "skipped" in next(e.comment for e in report.executions if e.topic == "fact.bad")
    assert len(shop.rows("fact.bad", "id")) == 10


def test_a_source_that_is_gone(shop: Shop) -> None:
    shop.land("stage.other", orders((n, n) for n in range(10)))
    bad(shop, GOOD_VIEW.replace("orders", "other"), depends_on=["stage.other"])
    shutil.rmtree(shop.table("stage.other"))
    shop.land("stage.orders", orders((n, n) for n in range(10, 15)))
    report = shop.run()
    assert "stage.other is gone" in failure(report).comment
    assert len(shop.rows("fact.good", "id")) == 15
    assert len(shop.rows("fact.bad", "id")) == 10


def away(shop: Shop, topic: str = "fact.bad") -> dict[str, Any]:
    """Give the row of a topic that an outage holds, which nobody had to resume."""
    row: dict[str, Any] = shop.json("offsets", "show", topic)[0]
    assert (row["state"], row["failures"], row["hostid"]) == ("AWAY", 0, "")
    return row


def test_storage_that_is_gone_for_a_while_stops_nothing(shop: Shop) -> None:
    shop.write({"tidegate.toml": "[control]\npause_after = 2\n"})
    assert not bad(shop, GOOD_VIEW).failed
    shop.land("stage.orders", orders((n, n) for n in range(10, 15)))
    log = shop.table("fact.bad") / "_delta_log"
    log.rename(shop.path / "log")
    log.write_text("a file where the log should be")
    for tries in range(1, 5):
        ended = failure(shop.run())
        assert (ended.topic, ended.attempt) == ("fact.bad", tries)
        assert ended.comment.startswith("away: fact.bad at ")
        assert "Not a directory" in ended.comment
        assert "Not a directory" in away(shop)["reason"]
    why = shop.json("why", "fact.bad")["why"]
    assert why.startswith("away since ")
    assert "Not a directory" in why
    assert len(shop.rows("fact.good", "id")) == 15
    log.unlink()
    (shop.path / "log").rename(log)
    assert not shop.run().failed
    assert len(shop.rows("fact.bad", "id")) == 15
    assert shop.json("offsets", "show", "fact.bad")[0]["state"] in ("DONE", "NOJOBS")


def test_a_lake_that_is_not_mounted_for_a_while_stops_nothing(shop: Shop) -> None:
    shop.write({"tidegate.toml": "[control]\npause_after = 1\n"})
    assert not bad(shop, GOOD_VIEW).failed
    shop.land("stage.orders", orders((n, n) for n in range(10, 15)))
    lake = shop.path / "lake"
    lake.rename(shop.path / "elsewhere")
    lake.mkdir()
    report = shop.run()
    assert {one.topic for one in report.executions if one.state == "failed"} == {
        *("fact.bad", "fact.good")
    }
    assert "is empty: is what it lies on mounted?" in away(shop)["reason"]
    lake.rmdir()
    (shop.path / "elsewhere").rename(lake)
    assert not shop.run().failed
    assert len(shop.rows("fact.bad", "id")) == 15


def test_a_disk_that_is_full_stops_nothing(shop: Shop) -> None:
    shop.write({"tidegate.toml": "[control]\npause_after = 1\n"})
    view = GOOD_VIEW.replace("amount", "amount, sequence(0, 40000) AS more")
    with mounted(shop.table("fact.bad"), "-t", "tmpfs", "-o", "size=100k", "tmpfs"):
        for _ in range(2):
            ended = failure(bad(shop, view))
            assert ended.comment == "away: No space left on device"
            away(shop)
        subprocess.run(["mount", "-o", "remount,size=9m", shop.table("fact.bad")], check=True)
        assert not shop.run().failed
        assert len(shop.rows("fact.bad", "id")) == 10


def test_a_folder_that_may_not_be_written_stops_nothing(shop: Shop) -> None:
    shop.write({"tidegate.toml": "[control]\npause_after = 1\n"})
    assert not bad(shop, GOOD_VIEW).failed
    shop.land("stage.orders", orders((n, n) for n in range(10, 15)))
    folder = shop.table("fact.bad")
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        assert "(Read-only file system)" in failure(shop.run()).comment
        away(shop)
    assert not shop.run().failed
    assert len(shop.rows("fact.bad", "id")) == 15


def test_a_row_that_holds_the_words_of_an_outage_is_set_aside(shop: Shop) -> None:
    words = "java.io.IOException: No space left on device\nCaused by: java.net.ConnectException: x"
    shop.land("stage.orders", [{**row, "text": "7"} for row in orders([(1, 1), (2, 2)])])
    shop.land("stage.orders", [{**row, "text": words} for row in orders([(3, 3)])])
    view = GOOD_VIEW.replace("amount", "CAST(text AS INT) AS number")
    assert not bad(shop, view).failed
    assert [row[0] for row in shop.rows("fact.bad", "id")] == [1, 2]


def test_a_lake_that_cannot_be_written(shop: Shop) -> None:
    shop.table("fact.bad").parent.mkdir(parents=True)
    shop.table("fact.bad").write_text("a file where the table should be")
    report = bad(shop, GOOD_VIEW)
    assert failure(report).topic == "fact.bad"
    assert len(shop.rows("fact.good", "id")) == 10


def test_a_store_that_was_lost_does_not_double_the_table(shop: Shop) -> None:
    shop.write({"lineage.yaml": entries(GOOD), "views/good.sql": GOOD_VIEW})
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    shop.run()
    shutil.rmtree(shop.path / ".tidegate")
    assert "offsets set fact.good --last 9,9" in failure(shop.run()).comment
    assert len(shop.rows("fact.good", "id")) == 10
    assert "stopped" in shop.json("why", "fact.good")["why"]
    assert shop.tidegate("offsets", "set", "fact.good", "--last", "9,9", "--force").returncode == 0
    shop.land("stage.orders", orders((n, n) for n in range(10, 12)))
    assert not shop.run().failed
    assert len(shop.rows("fact.good", "id")) == 12


def test_a_table_that_was_deleted_is_not_filled_with_a_hole(shop: Shop) -> None:
    shop.write({"lineage.yaml": entries(GOOD), "views/good.sql": GOOD_VIEW})
    shop.land("stage.orders", orders((n, n) for n in range(10)))
    shop.run()
    shutil.rmtree(shop.table("fact.good"))
    shop.land("stage.orders", orders((n, n) for n in range(10, 12)))
    assert "deleted or rolled back" in failure(shop.run()).comment
    assert shop.rows("fact.good", "id") == []
    shop.tidegate("offsets", "set", "fact.good", "--last", "0,-1", "--force")
    assert not shop.run().failed
    assert len(shop.rows("fact.good", "id")) == 12


def test_rows_without_a_position_are_counted_and_never_read(shop: Shop) -> None:
    shop.write({"lineage.yaml": entries(GOOD), "views/good.sql": GOOD_VIEW})
    rows = orders((n, n) for n in range(10))
    rows[3]["pos"] = rows[5]["id"] = rows[9]["id"] = None
    shop.land("stage.orders", rows)
    report = shop.run()
    assert not report.failed
    assert "3 rows without pos or id are never read" in report.not_due["fact.good"]
    assert len(shop.rows("fact.good", "id")) == 7
    offset = shop.json("offsets", "show", "fact.good")[0]
    assert (offset["last_pos"], offset["last_id"], offset["rows"]) == (8, 8, 7)
