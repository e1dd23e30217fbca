"""`executions`, `logs`, `etl-log`, `apply`, `resume`: what ran, what it said, what is in force."""

from __future__ import annotations

import getpass
import json

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.contract.scenes import block, claimed, commit_of, committed, declared
from tidegate.model.position import Position
from tidegate.model.records import Measures


@pytest.fixture
def ran(shop: Shop) -> Shop:
    """One block committed with its measures, and one that failed."""
    with shop.store() as store:
        measures = Measures("q-1", 9, 3, 1_000, 3_000, {"amount": 2, "id": 0})
        made = declared(store, "e-1")
        store.blocks.commit(commit_of(made, measures=measures))
        made = declared(store, "e-2", block(2, block().next, Position(1_800_000_000_000, 1)))
        store.blocks.fail(made, "no such column", "trace", True, 1_700_000_009_000)
    return shop


class TestExecutions:
    @pytest.mark.usefixtures("ran")
    def test_the_newest_comes_first(self, cli: Cli) -> None:
        rows = cli("executions", "--json").json()
        assert [(row["id"], row["state"]) for row in rows] == [
            ("e-2", "failed"),
            ("e-1", "finished"),
        ]
        assert rows[0]["assigned_at"] == "2023-11-14T22:13:20.000Z"

    @pytest.mark.usefixtures("ran")
    def test_they_are_filtered_and_limited(self, cli: Cli) -> None:
        assert len(cli("executions", "--limit", "1", "--json").json()) == 1
        (one,) = cli("executions", "--state", "finished", "--json").json()
        assert one["id"] == "e-1"
        assert cli("executions", "--flow", "fact.hours", "--json").json() == []

    @pytest.mark.usefixtures("ran")
    def test_one_is_shown_whole(self, cli: Cli) -> None:
        assert cli("executions", "e-2", "--json").json()["comment"]
        assert "e-2" in cli("executions", "e-2").out

    @pytest.mark.usefixtures("ran")
    def test_one_that_is_not_there_is_refused(self, cli: Cli) -> None:
        answer = cli("executions", "e-9", "--json")
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence == "there is no execution e-9"

    @pytest.mark.usefixtures("shop")
    def test_none_is_an_empty_list(self, cli: Cli) -> None:
        assert cli("executions", "--json").json() == []
        assert cli("executions").out == "Nothing has run yet.\n"


class TestLogs:
    @pytest.mark.usefixtures("ran")
    def test_each_line_is_an_entity_with_its_location(self, cli: Cli) -> None:
        lines = [json.loads(line) for line in cli("logs", "fact.orders", "--json").out.splitlines()]
        assert [(line["_location"], line["event_type"]) for line in lines] == [
            *((0, "task-started"), (1, "task-completed")),
            *((2, "task-started"), (3, "task-failed")),
        ]
        assert lines[3]["reason_why_stopped"] == "no such column\ntrace"

    @pytest.mark.usefixtures("ran")
    def test_the_latest_of_each_and_the_last_so_many(self, cli: Cli) -> None:
        for option, locations in ((["--latest"], [1, 2, 3]), (["--limit", "1"], [3])):
            lines = cli("logs", "fact.orders", *option, "--json").out.splitlines()
            assert [json.loads(line)["_location"] for line in lines] == locations

    @pytest.mark.usefixtures("ran")
    def test_people_read_rows_and_reasons(self, cli: Cli) -> None:
        out = cli("logs", "fact.orders").out
        assert "task-completed  e-1  9 rows" in out
        assert "task-failed     e-2  no such column" in out

    @pytest.mark.usefixtures("shop")
    def test_a_topic_that_never_ran_has_none(self, cli: Cli) -> None:
        answer = cli("logs", "fact.orders", "--json")
        assert (answer.code, answer.out, answer.err) == (0, "", "")

    @pytest.mark.usefixtures("shop")
    def test_a_flow_that_is_not_there_is_refused(self, cli: Cli) -> None:
        answer = cli("logs", "fact.nothing", "--json")
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence.startswith("there is no topic 'fact.nothing'; there are: fact.hours")

    def test_a_failure_without_a_reason_is_still_shown(self, cli: Cli, shop: Shop) -> None:
        with shop.store() as store:
            store.blocks.fail(claimed(store, "e-1"), "", "", False, 1)
        assert "task-failed" in cli("logs", "fact.orders").out


class TestEtlLog:
    @pytest.mark.usefixtures("ran")
    def test_a_row_has_what_the_load_measured(self, cli: Cli) -> None:
        (row,) = cli("etl-log", "fact.orders", "--json").json()
        assert (row["topic"], row["rows"], row["max_id"]) == ("fact.orders", 9, 3)
        assert row["min_ts"] == "1970-01-01T00:00:01.000Z"
        assert row["nulls"] == {"amount": 2, "id": 0}
        assert row["max_lag"] > 0
        assert '{"amount": 2}' in cli("etl-log").out

    @pytest.mark.usefixtures("shop")
    def test_none_and_an_unknown_topic(self, cli: Cli) -> None:
        assert cli("etl-log", "--json").json() == []
        assert cli("etl-log").out == "Nothing was loaded yet.\n"
        answer = cli("etl-log", "fact.nothing", "--json")
        assert (answer.code, answer.out) == (2, "")
        assert answer.sentence.startswith("there is no topic 'fact.nothing'")


class TestApply:
    def test_the_difference_is_shown_first_and_applied_once(self, cli: Cli, shop: Shop) -> None:
        lines = ["+ fact.hours (step)", "+ fact.orders (step)", "+ stage.customers (source)"]
        assert cli("apply", "--dry-run").out.splitlines() == [*lines, "Nothing was changed."]
        assert cli("apply").out.splitlines() == [*lines, "Applied."]
        assert cli("apply").out.startswith("Nothing to apply")
        shop.write({"lineage.yaml": LINEAGE.replace("  repeat: 1min\n", "")})
        assert cli("apply").out.splitlines() == ["~ fact.orders: repeat", "Applied."]
        with shop.store() as store:
            assert [one.version for one in store.definitions.history("fact.orders")] == [1, 2]
            assert {one.user for one in store.definitions.history("fact.orders")} == {
                getpass.getuser()
            }

    def test_a_user_without_a_name_is_a_number(
        self, cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nameless() -> str:
            raise KeyError("getpwuid(): uid not found: 4711")

        monkeypatch.setattr(getpass, "getuser", nameless)
        assert cli("apply").code == 0
        with shop.store() as store:
            assert store.definitions.current()["fact.orders"].user.isdigit()


class TestResume:
    @pytest.mark.usefixtures("ran")
    def test_a_stopped_topic_goes_on(self, cli: Cli) -> None:
        assert cli("offsets", "show", "fact.orders", "--json").json()[0]["state"] == "STOPPED"
        assert cli("resume", "fact.orders").out == "fact.orders goes on with the next run.\n"
        assert cli("offsets", "show", "fact.orders", "--json").json()[0]["state"] == "DONE"

    def test_one_that_is_not_stopped_or_not_there_is_refused(self, cli: Cli, shop: Shop) -> None:
        with shop.store() as store:
            committed(store, "e-1")
        answer = cli("resume", "fact.orders")
        assert answer.code == 2
        assert "neither paused nor stopped" in answer.sentence
        assert cli("resume", "fact.nothing").code == 2
