"""`tidegate check`: everything that is wrong, with file, line and field, in one go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.projects import orders
from tidegate.model.looks import Look


@pytest.mark.usefixtures("landed")
def test_a_sound_project_has_no_problems(cli: Cli) -> None:
    answer = cli("check")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "2 topics, 2 views: no problems, no warnings\n"


@pytest.mark.usefixtures("landed")
def test_json_says_the_same(cli: Cli) -> None:
    answer = cli("check", "--json")
    assert answer.code == 0
    assert answer.json() == {"ok": True, "problems": [], "warnings": []}


def test_problems_of_every_file_come_in_one_go_and_exit_with_2(cli: Cli, landed: Shop) -> None:
    landed.write(
        {
            "tidegate.toml": "[lake]\npaht = 'x'\n",
            "lineage.yaml": LINEAGE + "  delay: soon\n- table: fact.late\n  colour: red\n",
            "views/hours.sql": "SELECT 1,\n  2 +",
        }
    )
    answer = cli("check", "--json")
    assert answer.code == 2
    told = answer.json()
    assert told["ok"] is False
    assert [(p["file"], p["line"], p["field"]) for p in told["problems"]] == [
        ("lineage.yaml", 12, "delay"),
        ("lineage.yaml", 13, "depends_on"),
        ("lineage.yaml", 13, "transforms"),
        ("lineage.yaml", 14, "colour"),
        ("tidegate.toml", 2, "lake.paht"),
        ("views/hours.sql", 2, ""),
    ]
    assert all(problem["message"] for problem in told["problems"])


def test_people_get_a_line_for_each_problem_and_a_count(cli: Cli, landed: Shop) -> None:
    landed.write({"lineage.yaml": LINEAGE + "  delay: soon\n"})
    answer = cli("check")
    assert answer.code == 2
    first, last = answer.out.splitlines()
    assert first.startswith("lineage.yaml:12: delay: 'soon' is not a duration")
    assert last == "2 topics, 2 views: 1 problem, no warnings"


def test_a_warning_is_told_and_exits_with_0(cli: Cli, landed: Shop) -> None:
    landed.land("stage.other", orders([(1, 1)]))
    view = "SELECT o.pos, o.id FROM stage.orders o\nJOIN stage.other x USING (k)"
    view += " WHERE block(o.pos, o.id)"
    landed.write({"views/orders.sql": view})
    answer = cli("check", "--json")
    assert answer.code == 0
    told = answer.json()
    assert (told["ok"], told["problems"]) == (True, [])
    assert [(w["file"], w["line"], w["field"]) for w in told["warnings"]] == [
        ("views/orders.sql", 2, "stage.other")
    ]
    assert cli("check").out.startswith(
        "warning: views/orders.sql:2: stage.other: fact.orders reads"
    )


class TestLake:
    def test_a_dependency_that_is_nowhere_is_a_problem_and_no_store_is_made(
        self, cli: Cli, shop: Shop
    ) -> None:
        answer = cli("check", "--json")
        assert answer.code == 2
        (problem,) = answer.json()["problems"]
        assert (problem["line"], problem["field"]) == (5, "depends_on")
        assert problem["message"].startswith("stage.orders is neither built here, nor declared")
        assert not (shop.path / ".tidegate").exists()

    def test_one_that_landed_once_is_known(self, cli: Cli, landed: Shop) -> None:
        assert cli("offsets", "set", "fact.orders", "--last", "0,0").code == 0
        with landed.store() as store:
            store.offsets.see([Look("stage.orders", 0, version=0)], 0)
        (landed.table("stage.orders")).rename(landed.path / "away")
        assert cli("check").code == 0

    def test_a_base_without_a_position_is_a_problem(self, cli: Cli, shop: Shop) -> None:
        shop.land("stage.orders", [{"at": 1, "id": 1}])
        (problem,) = cli("check", "--json").json()["problems"]
        assert problem["message"].startswith("stage.orders has no columns pos")

    def test_a_table_that_is_broken_is_a_problem_beside_the_others(
        self, cli: Cli, landed: Shop
    ) -> None:
        log = landed.table("stage.orders") / "_delta_log" / "00000000000000000000.json"
        log.write_text("not a log")
        landed.write({"lineage.yaml": LINEAGE + "  delay: soon\n"})
        answer = cli("check", "--json")
        assert answer.code == 2
        assert [p["field"] for p in answer.json()["problems"]] == ["depends_on", "delay"]
        assert "stage.orders at" in answer.json()["problems"][0]["message"]

    def test_a_column_to_deal_rows_by_must_be_in_the_base(self, cli: Cli, landed: Shop) -> None:
        sharded = LINEAGE.replace("  repeat: 1min\n", "  shards: 2\n  shard_by: nobody\n")
        landed.write({"lineage.yaml": sharded})
        answer = cli("check", "--json")
        assert answer.code == 2
        (problem,) = answer.json()["problems"]
        assert (problem["line"], problem["field"]) == (8, "shard_by")
        assert problem["message"] == "stage.orders has no column nobody"
        landed.write({"lineage.yaml": sharded.replace("nobody", "K")})
        assert cli("check").code == 0

    def test_a_store_that_cannot_be_used_hides_no_problem(self, cli: Cli, shop: Shop) -> None:
        (shop.path / ".tidegate").mkdir()
        (shop.path / ".tidegate" / "store.db").write_text("this is no database" * 100)
        answer = cli("check", "--json")
        assert answer.code == 2
        assert [(p["file"], p["field"]) for p in answer.json()["problems"]] == [
            ("lineage.yaml", "depends_on"),
            ("tidegate.toml", "store.url"),
        ]


@pytest.mark.parametrize(
    "text", [b"[store", b"\xff\xfe", b"[bogus]\n", b"[store]\nurl = 5\n", b"x = " + b"[" * 9999]
)
def test_settings_that_do_not_read_are_problems_too(cli: Cli, shop: Shop, text: bytes) -> None:
    (shop.path / "tidegate.toml").write_bytes(text)
    answer = cli("check", "--json")
    assert answer.code == 2
    assert [problem["file"] for problem in answer.json()["problems"]] == ["tidegate.toml"]


def test_other_commands_refuse_an_unsound_project_with_its_problems(cli: Cli, shop: Shop) -> None:
    shop.write({"lineage.yaml": LINEAGE + "  delay: soon\n"})
    for command in (["lag"], ["why", "fact.orders"], ["offsets", "show"], ["logs", "fact.orders"]):
        answer = cli(*command, "--json")
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence.startswith("lineage.yaml:12: delay: 'soon' is not a duration")


def test_names_that_no_terminal_can_show_do_not_end_the_command(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    toml = folder / "tidegate.toml"
    toml.touch()
    refused = cli("-C", str(folder), "check")
    assert refused.code == 2
    assert "lake.path" in refused.out
    toml.write_text(f'[lake]\npath = "{tmp_path}/lake"\n')
    assert cli("-C", str(folder), "check").code == 0
