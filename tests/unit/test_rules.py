"""The rules that a lineage and its views must keep, each told with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import LakeError, Problem
from tidegate.model.looks import Look
from tidegate.project.folder import Project
from tidegate.tables.definition import tables_in
from tidegate.tables.lake_checks import lake_problems
from tidegate.wiring import read_project

BLOCK = "WHERE block(o.pos, o.id)"
VIEW = f"SELECT o.pos, o.id, o.amount\nFROM stage.orders o {BLOCK}"
STEP = "- {{table: {0}, depends_on: [{1}], transforms: {2}}}\n"
KEYED = "- {{table: {0}, depends_on: [{1}], transforms: {2}, keys: id}}\n"
RELOAD = "- {{table: {0}, depends_on: [{1}], transforms: {2}, processor: reload}}\n"
SOURCE = "- {{table: {0}, processor: source}}\n"


def _load(folder: Path, lineage: str, toml: str = "", **views: str) -> Project:
    (folder / "views").mkdir(exist_ok=True)
    (folder / "tidegate.toml").write_text(toml)
    (folder / "lineage.yaml").write_text(lineage)
    for name, text in views.items():
        (folder / "views" / f"{name}.sql").write_text(text)
    return read_project(folder)


def _only(project: Project) -> Problem:
    assert len(project.problems) == 1, project.problems
    return project.problems[0]


def _reading(table: str) -> str:
    return VIEW.replace("stage.orders", table)


class TestViews:
    def test_a_view_that_is_missing_is_named_at_the_entry(self, tmp_path: Path) -> None:
        problem = _only(_load(tmp_path, STEP.format("fact.a", "stage.orders", "gone")))
        assert (problem.file, problem.line, problem.field) == ("lineage.yaml", 1, "transforms")
        assert problem.message == "there is no view gone; write it as views/gone.sql"

    def test_a_view_that_does_not_parse_is_told_once_at_its_own_line(self, tmp_path: Path) -> None:
        lineage = STEP.format("fact.a", "stage.orders", "v") + STEP.format("fact.b", "s.o", "v")
        problem = _only(_load(tmp_path, lineage, v="SELECT 1,\n  2 +"))
        assert (problem.file, problem.line) == ("views/v.sql", 2)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "the view is empty"),
            ("-- only a comment", "the view is empty"),
            ("DROP TABLE fact.a", "has to be a plain SELECT, this is DROP"),
            (f"{VIEW}; DROP TABLE fact.a", "a second statement begins here"),
            ("SELECT 'open", "does not end"),
            ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "nested too deeply"),
            ("SELECT 1 -- " + "x" * 1_000_000, "is larger than 1 MB"),
        ],
    )
    def test_what_is_no_select_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        problem = _only(_load(tmp_path, STEP.format("fact.a", "stage.orders", "v"), v=text))
        assert problem.file == "views/v.sql"
        assert message in problem.message

    def test_a_view_that_is_no_text_or_no_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "views" / "folder.sql").mkdir(parents=True)
        (tmp_path / "views" / "bytes.sql").write_bytes(b"SELECT '\xff'")
        (tmp_path / "views" / "a-b.sql").write_text("SELECT 1")
        found = {p.file: p.message for p in _load(tmp_path, "").problems}
        assert found == {
            "views/folder.sql": "cannot be read: Is a directory",
            "views/bytes.sql": "is not UTF-8 text",
            "views/a-b.sql": "its name must be letters, digits and _ only",
        }

    def test_the_name_of_a_view_may_have_another_case_and_its_file_is_named_as_it_is(
        self, tmp_path: Path
    ) -> None:
        project = _load(tmp_path, STEP.format("fact.a", "stage.orders", "ORDERS"), Orders=VIEW)
        assert project.problems == ()
        project = _load(tmp_path, STEP.format("fact.a", "s.x", "orders"), Orders="SELECT 1 AS a")
        assert {p.file for p in project.problems} == {"views/Orders.sql"}

    def test_two_views_that_differ_in_case_alone_are_refused(self, tmp_path: Path) -> None:
        problem = _only(_load(tmp_path, "", orders=VIEW, Orders=VIEW))
        assert (problem.file, problem.line) == ("views/orders.sql", 0)
        assert problem.message == "is called as views/Orders.sql is, but for its case"

    def test_a_view_may_read_a_view(self, tmp_path: Path) -> None:
        project = _load(
            tmp_path,
            STEP.format("fact.a", "stage.orders", "top"),
            top="SELECT * FROM Middle",
            middle="SELECT * FROM bottom",
            bottom=VIEW,
        )
        assert project.problems == ()
        assert list(tables_in(project.definitions)["fact.a"].views) == ["bottom", "middle", "top"]

    def test_a_view_that_reads_a_missing_view_is_told_at_its_line(self, tmp_path: Path) -> None:
        view = "SELECT o.pos, o.id\nFROM stage.orders o\nJOIN missing m ON true\n" + BLOCK
        problem = _only(_load(tmp_path, STEP.format("fact.a", "stage.orders", "v"), v=view))
        assert (problem.file, problem.line, problem.field) == ("views/v.sql", 3, "missing")
        assert "there is no views/missing.sql; tables are named db.table" in problem.message

    def test_views_in_a_circle_are_told_and_the_other_problems_too(self, tmp_path: Path) -> None:
        project = _load(
            tmp_path,
            STEP.format("fact.a", "stage.orders", "'a, gone, plain'"),
            a="SELECT * FROM b",
            b="SELECT * FROM a",
            plain="SELECT o.pos, o.id FROM stage.orders o",
        )
        first, second, third = project.problems
        assert "there is no view gone" in first.message
        assert "views read each other in a circle: a → b → a" in second.message
        assert (third.file, third.line) == ("views/plain.sql", 1)
        assert "does not read stage.orders through block()" in third.message


class TestVariables:
    VIEW = f"SELECT o.pos, o.id -- not :this\nFROM stage.orders o {BLOCK}\n AND o.amount > :least"

    def test_a_variable_comes_from_the_settings(self, tmp_path: Path) -> None:
        lineage = STEP.format("fact.a", "stage.orders", "v")
        project = _load(tmp_path, lineage, "[vars]\nleast = 5\nother = 1\n", v=self.VIEW)
        assert project.problems == ()
        assert tables_in(project.definitions)["fact.a"].vars == {"least": 5}

    def test_one_that_is_missing_is_told_at_its_line(self, tmp_path: Path) -> None:
        lineage = STEP.format("fact.a", "stage.orders", "v")
        problem = _only(_load(tmp_path, lineage, v=self.VIEW))
        assert (problem.file, problem.line, problem.field) == ("views/v.sql", 3, ":least")
        assert problem.message == ":least is not in [vars] of tidegate.toml"


class TestSteps:
    @pytest.mark.parametrize(
        ("view", "line", "message"),
        [
            ("SELECT o.pos, o.id\nFROM stage.orders o", 2, "does not read stage.orders through"),
            (f"SELECT\n o.amount FROM stage.orders o {BLOCK}", 2, "does not give pos and id"),
            (f"SELECT o.pos FROM stage.orders o {BLOCK}", 1, "does not give id"),
            (
                f"SELECT o.pos + 1 AS pos, o.id FROM stage.orders o {BLOCK}",
                1,
                "pos must be the base row's own position",
            ),
            (f"SELECT DISTINCT o.pos, o.id FROM stage.orders o {BLOCK}", 1, "over a block"),
            (f"SELECT o.pos, o.id FROM stage.orders o {BLOCK}\nLIMIT 5", 2, "over a block"),
        ],
    )
    def test_a_view_keeps_the_rules_of_a_step(
        self, tmp_path: Path, view: str, line: int, message: str
    ) -> None:
        problem = _only(_load(tmp_path, STEP.format("fact.a", "stage.orders", "v"), v=view))
        assert (problem.file, problem.line) == ("views/v.sql", line)
        assert message in problem.message

    def test_an_aggregate_over_a_block_is_refused_with_the_right_way(self, tmp_path: Path) -> None:
        view = f"SELECT max(o.pos) AS pos, max(o.id) AS id\nFROM stage.orders o {BLOCK}"
        problem = _only(_load(tmp_path, KEYED.format("fact.a", "stage.orders", "v"), v=view))
        assert "over a block" in problem.message
        assert "upto(…), name the groups in `keys`" in problem.message

    def test_block_is_not_for_a_reload(self, tmp_path: Path) -> None:
        problem = _only(_load(tmp_path, RELOAD.format("mart.a", "stage.orders", "v"), v=VIEW))
        assert (problem.file, problem.line) == ("views/v.sql", 2)
        assert problem.message == "block() is for a Step; a Reload reads its tables whole"

    def test_a_column_is_given_once_by_a_reload_too(self, tmp_path: Path) -> None:
        view = "SELECT o.region,\n  o.net AS Region FROM stage.orders o"
        problem = _only(_load(tmp_path, RELOAD.format("mart.a", "stage.orders", "v"), v=view))
        assert (problem.file, problem.line) == ("views/v.sql", 2)
        assert "gives the column region twice" in problem.message

    def test_a_check_needs_a_view_that_gives_the_same_twice(self, tmp_path: Path) -> None:
        lineage = (
            "- table: fact.a\n  depends_on: stage.orders\n  transforms: v\n  checks: {a: x > 0}"
        )
        view = f"SELECT o.pos, o.id, rand() AS x FROM stage.orders o {BLOCK}"
        problem = _only(_load(tmp_path, lineage, v=view))
        assert (problem.line, problem.field) == (4, "checks")
        assert "does not go with rand() in views/v.sql" in problem.message


class TestListed:
    def test_a_table_that_is_read_but_not_listed_is_a_warning(self, tmp_path: Path) -> None:
        view = f"SELECT o.pos, o.id\nFROM stage.orders o\nJOIN stage.Other USING (id) {BLOCK}"
        lineage = STEP.format("fact.a", "stage.orders", "v")
        project = _load(tmp_path, lineage, v=view)
        problem = _only(project)
        assert problem.warning
        assert (problem.file, problem.line, problem.field) == ("views/v.sql", 3, "stage.other")
        assert "neither in its depends_on nor in its unwaited" in problem.message
        project.require_sound()

    def test_a_table_in_either_list_is_listed(self, tmp_path: Path) -> None:
        view = f"SELECT o.pos, o.id FROM stage.orders o, stage.a, stage.b {BLOCK}"
        lineage = (
            "- {table: fact.a, depends_on: [stage.orders, stage.A], unwaited: stage.b,"
            " transforms: v}"
        )
        assert _load(tmp_path, lineage, v=view).problems == ()


class TestBases:
    @pytest.mark.parametrize(
        ("base", "step", "message"),
        [
            (RELOAD, STEP, "built by Reload and has no position to read it by"),
            (RELOAD, KEYED, "built by Reload and has no position to read it by"),
            (KEYED, STEP, "has keys, so its rows change after they were read"),
        ],
    )
    def test_a_base_that_may_not_be_one_is_told_at_depends_on(
        self, tmp_path: Path, base: str, step: str, message: str
    ) -> None:
        lineage = base.format("fact.b", "stage.orders", "b") + step.format("fact.a", "fact.b", "a")
        whole = VIEW.replace(BLOCK, "") if base is RELOAD else VIEW
        problem = _only(_load(tmp_path, lineage, b=whole, a=_reading("fact.b")))
        assert (problem.line, problem.field) == (2, "depends_on")
        assert problem.message.startswith("fact.b")
        assert message in problem.message

    @pytest.mark.parametrize(
        ("base", "step"), [(STEP, STEP), (STEP, KEYED), (KEYED, KEYED), (SOURCE, STEP)]
    )
    def test_landed_appended_and_for_keyed_steps_keyed_tables_may_be_bases(
        self, tmp_path: Path, base: str, step: str
    ) -> None:
        lineage = base.format("fact.b", "stage.orders", "b") + step.format("fact.a", "fact.b", "a")
        assert _load(tmp_path, lineage, b=VIEW, a=_reading("fact.b")).problems == ()

    def test_a_reload_may_be_waited_for(self, tmp_path: Path) -> None:
        lineage = RELOAD.format("mart.b", "stage.orders", "b")
        lineage += STEP.format("fact.a", "stage.orders, mart.b", "a")
        assert _load(tmp_path, lineage, b=VIEW.replace(BLOCK, ""), a=VIEW).problems == ()

    def test_the_base_tells_what_its_position_is_called(self, tmp_path: Path) -> None:
        lineage = "- {table: stage.orders, processor: source, pos: at, id: seq}\n"
        lineage += STEP.format("fact.a", "stage.orders", "a")
        view = "SELECT at AS pos, seq AS id FROM stage.orders WHERE block(at, seq)"
        project = _load(tmp_path, lineage, a=view)
        assert project.problems == ()
        definition = tables_in(project.definitions)["fact.a"]
        assert (definition.base_pos, definition.base_id) == ("at", "seq")


class TestTogether:
    def test_every_circle_is_told_at_its_depends_on(self, tmp_path: Path) -> None:
        lineage = "".join(
            STEP.format(f"fact.{one}", f"fact.{other}", f"v{one}")
            for one, other in (("a", "b"), ("b", "a"), ("c", "c"))
        )
        views = {f"v{one}": _reading(f"fact.{other}") for one, other in ("ab", "ba", "cc")}
        found = _load(tmp_path, lineage, **views).problems
        assert [(p.line, p.field) for p in found] == [(1, "depends_on"), (3, "depends_on")]
        assert found[0].message.endswith("in a circle: fact.a → fact.b → fact.a")
        assert found[1].message.endswith("in a circle: fact.c → fact.c")

    @pytest.mark.parametrize(
        ("more", "field"),
        [
            ("keys: [id]", "keys"),
            ("pos: at", "pos"),
            ("partition_by: [x]", "partition_by"),
            ("processor: reload", "processor"),
        ],
    )
    def test_topics_of_one_table_agree_on_its_shape(
        self, tmp_path: Path, more: str, field: str
    ) -> None:
        lineage = STEP.format("fact.a#web", "stage.orders", "v")
        lineage += f"- {{table: fact.a#shop, depends_on: stage.orders, transforms: v, {more}}}\n"
        view = "SELECT *, pos AS at FROM stage.orders WHERE block(pos, id)"
        found = [p for p in _load(tmp_path, lineage, v=view).problems if p.file == "lineage.yaml"]
        assert [(p.line, p.field) for p in found] == [(2, field)]

    @pytest.mark.parametrize("field", ["depends_on: s.x", "transforms: v", "keys: a", "after: x"])
    def test_a_source_is_built_by_nobody_here(self, tmp_path: Path, field: str) -> None:
        lineage = f"- table: stage.x\n  processor: source\n  delay: 1s\n  {field}\n"
        (problem,) = [p for p in _load(tmp_path, lineage).problems if "source" in p.message]
        assert (problem.line, problem.field) == (4, field.partition(":")[0])

    @pytest.mark.parametrize("missing", ["depends_on", "transforms"])
    def test_what_a_topic_needs_is_told_at_its_entry(self, tmp_path: Path, missing: str) -> None:
        fields = {"depends_on": "stage.orders", "transforms": "v"}
        given = "".join(f"  {k}: {v}\n" for k, v in fields.items() if k != missing)
        found = _load(tmp_path, f"# one\n- table: fact.a\n{given}", v=VIEW).problems
        (problem,) = [p for p in found if not p.warning]
        assert (problem.line, problem.field) == (2, missing)
        assert problem.message.startswith("is missing; name the")


class TestLake:
    def _told(
        self,
        folder: Path,
        looks: dict[str, Look | LakeError],
        seen: tuple[str, ...] = (),
        lineage: str = "- {table: fact.a, depends_on: [stage.orders, stage.c], transforms: v}",
    ) -> list[tuple[int, str, str]]:
        project = _load(folder, lineage, v=VIEW)
        found = lake_problems(project.entries, tables_in(project.definitions), looks, seen)
        assert all(problem.in_lake for problem in found)
        return [(problem.line, problem.field, problem.message) for problem in found]

    def test_a_dependency_that_is_nowhere_is_told(self, tmp_path: Path) -> None:
        looks: dict[str, Look | LakeError] = {
            "stage.orders": Look("stage.orders", 0),
            "stage.c": Look("stage.c", 0, exists=False),
        }
        ((line, field, message),) = self._told(tmp_path, looks)
        assert (line, field) == (1, "depends_on")
        assert message.startswith("stage.c is neither built here, nor declared")

    def test_one_that_landed_before_or_is_declared_is_no_problem(self, tmp_path: Path) -> None:
        looks: dict[str, Look | LakeError] = {"stage.c": Look("stage.c", 0, exists=False)}
        assert self._told(tmp_path, looks, seen=("stage.c",)) == []
        lineage = SOURCE.format("stage.c") + STEP.format("fact.a", "stage.orders, stage.c", "v")
        assert self._told(tmp_path, looks, lineage=lineage) == []

    def test_only_a_base_needs_a_position(self, tmp_path: Path) -> None:
        looks: dict[str, Look | LakeError] = {
            "stage.orders": Look("stage.orders", 0, positioned=False),
            "stage.c": Look("stage.c", 0, positioned=False),
        }
        ((_, _, message),) = self._told(tmp_path, looks)
        assert message == (
            "stage.orders has no columns pos (bigint or timestamp) and id to be read by position"
        )

    def test_one_that_is_not_waited_for_must_be_somewhere_too(self, tmp_path: Path) -> None:
        lineage = "- {table: fact.a, depends_on: stage.orders, transforms: v,\n   unwaited: s.x}"
        looks: dict[str, Look | LakeError] = {"s.x": Look("s.x", 0, exists=False)}
        ((line, field, _),) = self._told(tmp_path, looks, lineage=lineage)
        assert (line, field) == (2, "unwaited")

    def test_a_table_that_cannot_be_read_is_told_as_it_is(self, tmp_path: Path) -> None:
        looks: dict[str, Look | LakeError] = {"stage.c": LakeError("stage.c is broken")}
        assert self._told(tmp_path, looks) == [(1, "depends_on", "stage.c is broken")]


class TestColumnsOfAnEntry:
    @pytest.mark.parametrize(
        ("fields", "field", "column"),
        [
            ("keys: custmer", "keys", "custmer"),
            ("keys: id, deleted: gone = 1", "deleted", "gone"),
            ("checks: {small: amuont < 5}", "checks", "amuont"),
            ("partition_by: day", "partition_by", "day"),
            ("cluster_by: day", "cluster_by", "day"),
        ],
    )
    def test_one_that_the_view_does_not_give_is_named(
        self, tmp_path: Path, fields: str, field: str, column: str
    ) -> None:
        lineage = f"- {{table: fact.a, depends_on: [stage.orders], transforms: v, {fields}}}\n"
        problem = _only(_load(tmp_path, lineage, v=VIEW))
        assert (problem.file, problem.line, problem.field) == ("lineage.yaml", 1, field)
        assert problem.message == (
            f"names the column {column}, which the view v does not give; it gives: amount, id, pos"
        )

    @pytest.mark.parametrize(
        "fields",
        [
            "keys: ID",
            "checks: {one: amount < 5 AND v.amount > 1}",
            "checks: {two: 'exists(array(amount), x -> x > 1)'}",
            "checks: {three: 'current_date() > DATE ''2020-01-01'''}",
        ],
    )
    def test_those_that_it_gives_are_passed(self, tmp_path: Path, fields: str) -> None:
        lineage = f"- {{table: fact.a, depends_on: [stage.orders], transforms: v, {fields}}}\n"
        found = [one for one in _load(tmp_path, lineage, v=VIEW).problems if not one.warning]
        assert [one.message for one in found if "does not give" in one.message] == []

    def test_a_view_with_a_star_may_give_anything(self, tmp_path: Path) -> None:
        view = VIEW.replace("o.amount", "o.*")
        lineage = "- {table: fact.a, depends_on: [stage.orders], transforms: v, keys: whatever}\n"
        assert not [p for p in _load(tmp_path, lineage, v=view).problems if p.field == "keys"]
