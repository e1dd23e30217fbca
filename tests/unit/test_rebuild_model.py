"""The definition of a shadow, who becomes stale, and when a table wants care."""

from __future__ import annotations

import pytest

from tidegate.sql.reading import pointed_at
from tidegate.tables.care import VACUUM_EVERY, CareRules, Chores, chores
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.rebuild import is_shadow, made_stale, shadow_name, shadow_of

NAME = shadow_name("fact.sales", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def test_a_shadow_means_its_own_table_wherever_the_topic_names_its_own() -> None:
    text = "SELECT * FROM stage.s WHERE block(pos, id) AND id NOT IN (SELECT id FROM Fact.Sales)"
    topic = TableDefinition(
        "fact.sales#web",
        Processor.STEP,
        depends_on=("stage.s",),
        unwaited=("fact.sales",),
        transforms=("v",),
        views={"v": text},
        after="DELETE FROM `fact`.sales WHERE x = 'fact.sales'; OPTIMIZE fact.sales",
        partition_by=("_topic",),
        tagged=True,
        log="SELECT 1",
    )
    shadow = shadow_of(topic, NAME)
    assert NAME == "fact.sales__rebuild_0f1e2d3c4b5a"
    assert (shadow.topic, shadow.table, shadow.rebuilds) == (NAME, NAME, "fact.sales#web")
    assert shadow.unwaited == (NAME,)
    beside = "`fact`.`sales__rebuild_0f1e2d3c4b5a`"
    assert shadow.views["v"] == text.replace("Fact.Sales", f"{beside} AS `Sales` ")
    assert shadow.after == f"DELETE FROM {beside} WHERE x = 'fact.sales'; OPTIMIZE {beside}"
    assert (shadow.tagged, shadow.partition_by, shadow.log) == (False, (), "")
    assert shadow_of(topic, NAME) == shadow


@pytest.mark.parametrize(
    "name",
    [
        "fact.sales",
        "fact.sales__rebuild_",
        "fact.sales__rebuild_web",
        "fact.s__rebuild_0f1e2d3c4b5A",
    ],
)
def test_a_table_of_the_users_is_no_shadow(name: str) -> None:
    assert is_shadow(NAME)
    assert not is_shadow(name)


def test_statements_that_name_other_tables_stay_as_they_are() -> None:
    text = "INSERT INTO audit.sales SELECT s.fact.sales_id, 'fact.sales' FROM x -- fact.sales"
    assert pointed_at(text, "fact.sales", NAME) == text


def test_all_that_is_built_from_a_topic_becomes_stale_and_nothing_else() -> None:
    def topic(name: str, *reads: str, processor: Processor = Processor.STEP) -> TableDefinition:
        return TableDefinition(name, processor, depends_on=reads)

    found = {
        "fact.a": topic("fact.a", "stage.a"),
        "fact.b": topic("fact.b", "stage.a", "fact.a"),
        "mart.c": topic("mart.c", "fact.b", processor=Processor.RELOAD),
        "fact.d": topic("fact.d", "stage.a"),
    }
    stale = made_stale(found, "fact.a", 0)
    start = "stale: fact.a was rebuilt at 1970-01-01T00:00:00.000Z"
    assert stale == {
        "fact.b": f"{start}; mend it: tidegate rebuild fact.b+",
        "mart.c": f"{start}; its next run mends it",
    }


RULES = CareRules(compact_files=3, vacuum_after=1000)


@pytest.mark.parametrize(
    ("small", "wanted"),
    [({}, False), ({"": 3}, False), ({"": 4}, True), ({"a": 1, "b": 1, "c": 1, "d": 1}, False)],
)
def test_small_files_are_compacted_above_the_limit_beyond_one_a_partition(
    small: dict[str, int], wanted: bool
) -> None:
    found = chores(RULES, small, created_at=0, vacuumed_at=None, now=1)
    assert found == Chores(compact=wanted)
    off = CareRules(0, 0)
    assert not chores(off, {"": 1000}, created_at=0, vacuumed_at=None, now=10**12)


def test_a_table_is_vacuumed_once_a_day_and_not_before_it_can_hold_old_files() -> None:
    def vacuum(created_at: int, vacuumed_at: int | None, now: int) -> bool:
        return chores(RULES, {}, created_at=created_at, vacuumed_at=vacuumed_at, now=now).vacuum

    now = 10 * VACUUM_EVERY
    assert vacuum(0, None, now)
    assert not vacuum(now - 999, None, now)
    assert not vacuum(0, now - VACUUM_EVERY + 1, now)
    assert vacuum(0, now - VACUUM_EVERY, now)
