"""`check` and `apply` of a project with a second kind of flow, which only this test has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.cli.conftest import LINEAGE, Cli, Shop
from tests.kinds.counting import CountDefinition
from tests.kinds.registered import CountFields, read
from tidegate import wiring
from tidegate.errors import Problem
from tidegate.model.flow import Kind
from tidegate.model.position import Offset
from tidegate.project.folder import Found, KindReader, Project, Shared
from tidegate.project.yaml import Entry, Form


def _read(entries: Sequence[Entry[CountFields]], shared: Shared) -> Found:
    views = shared.views.texts
    problems = [one.problem("into", "is a view") for one in entries if one.fields.into in views]
    return replace(read(entries, shared), problems=problems)


def _check(project: Project) -> list[Problem]:
    return [
        project.entries[flow].problem("upto", "is too far")
        for flow, one in project.definitions.items()
        if isinstance(one, CountDefinition) and one.goals["x"] > 100
    ]


@pytest.fixture
def counting(landed: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Give a project in which tables are built and things are counted."""
    reader = KindReader("count", Form(("counts/*",), CountFields, listed=False), _read)
    parts = replace(
        wiring.KINDS[Kind.TABLE],
        reader=reader,
        read=CountDefinition.from_dict,
        check=_check,
        misfits=lambda _parts, _changes: [],
    )
    monkeypatch.setitem(wiring.KINDS, Kind.JOB, parts)
    landed.write({"counts/sheep.yaml": "count: sheep\ninto: stage.sheep\n"})
    return landed


def _problems(cli: Cli) -> list[tuple[str, int, str, str]]:
    answer = cli("check", "--json")
    assert answer.code == 2
    return [(p["file"], p["line"], p["field"], p["message"]) for p in answer.json()["problems"]]


@pytest.mark.usefixtures("counting")
def test_both_are_counted_by_their_names(cli: Cli) -> None:
    answer = cli("check")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "2 topics, 1 count, 2 views: no problems, no warnings\n"


def test_problems_of_both_come_in_one_go(cli: Cli, counting: Shop) -> None:
    counting.write(
        {
            "lineage.yaml": LINEAGE + "  delay: soon\n",
            "counts/a.yaml": "count: a\nint: x\n",
            "counts/b.yaml": "count: b\ninto: hours\nupto: 101\n",
        }
    )
    assert [problem[:3] for problem in _problems(cli)] == [
        ("counts/a.yaml", 1, "into"),
        ("counts/a.yaml", 2, "int"),
        ("counts/b.yaml", 2, "into"),
        ("counts/b.yaml", 3, "upto"),
        ("lineage.yaml", 12, "delay"),
    ]


def test_two_flows_of_one_name_are_told_at_the_second(cli: Cli, counting: Shop) -> None:
    counting.write(
        {
            "counts/cows.yaml": "\ncount: sheep\ninto: stage.cows\n",
            "counts/orders.yaml": "# one\n\ncount: fact.orders\ninto: stage.x\n",
        }
    )
    assert _problems(cli) == [
        ("counts/orders.yaml", 3, "", "fact.orders stands already at lineage.yaml:4"),
        ("counts/sheep.yaml", 1, "", "sheep stands already at counts/cows.yaml:2"),
    ]


def test_definitions_of_both_are_applied_with_their_history(cli: Cli, counting: Shop) -> None:
    assert cli("apply", "--dry-run").out.splitlines() == [
        "+ fact.hours (step)",
        "+ fact.orders (step)",
        "+ sheep (count)",
        "+ stage.customers (source)",
        "Nothing was changed.",
    ]
    assert cli("apply").out.endswith("Applied.\n")
    assert cli("apply").out.startswith("Nothing to apply")
    counting.write({"counts/sheep.yaml": "count: sheep\ninto: stage.sheep\nupto: 20\n"})
    assert cli("apply").out == "~ sheep: goals\nApplied.\n"
    (counting.path / "counts" / "sheep.yaml").unlink()
    assert cli("apply").out == "- sheep\nApplied.\n"
    with counting.store() as store:
        versions = [
            (one.version, one.definition.as_dict()["goals"])
            for one in store.definitions.history("sheep")
        ]
        assert versions == [(1, {"x": 10}), (2, {"x": 20})]
        assert store.definitions.applied("sheep") is None


def test_a_name_whose_position_is_of_another_kind_is_refused(cli: Cli, counting: Shop) -> None:
    counting.write({"counts/sheep.yaml": "count: fact.sheep\ninto: stage.sheep\n"})
    assert cli("apply").code == 0
    with counting.store() as store:
        store.offsets.put(Offset("fact.sheep", {"counted": {"x": 3}}), 0)
    (counting.path / "counts" / "sheep.yaml").unlink()
    table = LINEAGE + "- {table: fact.sheep, depends_on: stage.orders, transforms: orders}\n"
    counting.write({"lineage.yaml": table})
    answer = cli("apply")
    assert answer.code == 2
    assert answer.sentence == (
        "lineage.yaml:12: fact.sheep was a job whose position the store keeps;"
        " give this table another name"
    )
    with counting.store() as store:
        assert store.definitions.applied("fact.sheep") is not None
