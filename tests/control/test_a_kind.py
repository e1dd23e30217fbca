"""A kind of flow that is no table goes all the way through `tidegate up`.

It declares blocks with a marker of its own, fails once, checkpoints in the middle of executions,
lands rows that a Step reads, and is rescued from a worker that dies behind each checkpoint.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.projects import Folder, entries

from .conftest import settings
from .processes import Crew, until

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "kinds" / "site")))


@pytest.mark.jvm
def test_it_declares_fails_is_rescued_checkpoints_and_lands(
    shop: Folder, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    shop.write(
        {
            "tidegate.toml": settings(),
            "lineage.yaml": entries(
                {
                    "table": "fact.sheep",
                    "depends_on": ["stage.sheep"],
                    "transforms": ["sheep"],
                    "repeat": "1s",
                }
            ),
            "views/sheep.sql": "SELECT s.pos, s.id, s.number FROM stage.sheep s"
            " WHERE block(s.pos, s.id)",
            "counts/sheep.yaml": "count: count-sheep\ninto: stage.sheep\nupto: 5\n",
        }
    )
    assert shop.tidegate("check").returncode == 0
    up = crew.tidegate("up", "--slots", "1", TIDEGATE_CRASHPOINT="block.after_checkpoint:1:python")
    wanted = [(number,) for number in range(1, 6)]
    until(lambda: shop.rows("fact.sheep", "number") == wanted, "all of it has come through")
    assert shop.rows("stage.sheep", "number") == wanted

    (row,) = [row for row in shop.json("lag") if row["topic"] == "count-sheep"]
    assert (row["processor"], row["state"], row["last"]["counted"]) == ("count", "DONE", {"x": 5})
    why = shop.json("why", "fact.sheep")
    assert [link["topic"] for link in why["chain"]] == ["fact.sheep", "stage.sheep", "count-sheep"]

    ran = shop.json("executions", "--flow", "count-sheep")
    states = [one["state"] for one in reversed(ran)]
    assert states[0] == "failed"
    assert "lost" in states
    assert {(one["flow_kind"], one["lane"]) for one in ran} == {("job", "stage.sheep")}
    log = shop.json_lines("logs", "count-sheep")
    assert [one["x"] for one in log if one["event_type"] == "counted"] == [2, 4, 5]
    failures = [one for one in log if one["event_type"] == "task-failed"]
    assert "does not work the first time" in failures[0]["reason_why_stopped"]
    assert shop.tidegate("logs", "count-sheep").returncode == 0

    assert up.end(signal.SIGTERM) == 0, up.said
    up.wait_for_its_group()
