"""Others that speak only the protocol: their workers for our manager, their manager for ours."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker
from tests.projects import Folder

from .conftest import settings
from .foreign import ForeignManager
from .processes import Crew, Member, until

SCRIPT = Path(__file__).with_name("foreign.py")


@pytest.fixture
def on_kafka(shop: Folder, broker: Broker) -> Folder:
    shop.write({"tidegate.toml": settings(bus=f'url = "kafka://{broker.servers}"')})
    return shop


def hire(crew: Crew, broker: Broker, habit: str) -> Member:
    return crew.start([sys.executable, str(SCRIPT), broker.servers, "worker", habit])


def submit(folder: Folder, **configuration: Any) -> str:
    (folder.path / "job.json").write_text(json.dumps(configuration))
    id: str = folder.json("execute", "--config", str(folder.path / "job.json"))["id"]
    return id


def execution(folder: Folder, id: str) -> dict[str, Any]:
    found: dict[str, Any] = folder.json("executions", id)
    return found


def test_foreign_workers_finish_refuse_and_die(
    on_kafka: Folder, crew: Crew, broker: Broker
) -> None:
    manager = crew.tidegate("manager")
    manager.wait_for("leads, term 1")

    # One that dies half-way: the execution is lost, and given to another.
    dying = hire(crew, broker, "die")
    lost = submit(on_kafka, step=1)
    assert dying.process.wait(120) == 9
    worker, told, configuration = dying.said.split(maxsplit=2)
    assert (told, json.loads(configuration)) == (lost, {"step": 1})
    finishing = hire(crew, broker, "finish")
    until(lambda: "finished" in str(on_kafka.json("executions", "--state", "finished")), "finish")
    row = execution(on_kafka, lost)
    assert (row["state"], row["etl_worker"]) == ("lost", worker)
    assert row["assigned_at"] <= row["accepted_at"] <= row["started_at"] <= row["finished_at"]
    (phase,) = row["phases"]
    assert phase["stream_started_at"] is not None
    assert phase["stream_finished_at"] is phase["total_in_messages"] is None

    (done,) = on_kafka.json("executions", "--state", "finished")
    assert (done["retry_of"], done["attempt"]) == (lost, 2)
    assert done["configuration"] == {"step": 1}
    assert None not in (done["accepted_at"], done["started_at"], done["finished_at"])
    (phase,) = execution(on_kafka, done["id"])["phases"]
    assert (phase["phase"], phase["data_stream_name"]) == ("data-load", "things")
    totals = ("total_in_messages", "total_out_messages", "total_failed_messages")
    assert [phase[name] for name in totals] == [5, 4, 1]
    assert phase["instance_id"] == finishing.said.split()[0]

    # One that refuses: what it was given goes to the other, as soon as that one gets work again.
    willing = finishing.said.split()[0]
    assert on_kafka.tidegate("instances", "disable", willing).returncode == 0
    refusing = hire(crew, broker, "reject")
    submit(on_kafka, step=2)
    until(lambda: on_kafka.json("executions", "--state", "rejected"), "a refusal")
    assert on_kafka.tidegate("instances", "enable", willing).returncode == 0
    done = until(
        lambda: [
            row
            for row in on_kafka.json("executions", "--state", "finished")
            if row["configuration"] == {"step": 2}
        ],
        "what was refused is done by another",
    )
    assert [row["etl_worker"] for row in done] == [willing]
    refused = on_kafka.json("executions", "--state", "rejected")
    assert done[0]["retry_of"] in {row["id"] for row in refused}
    assert {row["etl_worker"] for row in refused} == {refusing.said.split()[0]}

    status = {row["instance_id"]: row for row in on_kafka.json("instances", "list")}
    assert status[worker]["status"] == "unloaded"
    assert status[willing]["status"] == "alive"
    assert manager.end() == 0


def test_a_foreign_manager_has_our_worker_build_a_table(
    on_kafka: Folder, crew: Crew, broker: Broker
) -> None:
    assert on_kafka.tidegate("apply").returncode == 0
    manager = ForeignManager(broker.servers)
    worker = crew.tidegate("worker", "--foreign-manager", "--slots", "1")
    worker.wait_for("up with 1 slots")
    instance = manager.first_idle(120)
    id = manager.assign(instance, {"kind": "table", "id": "fact.orders"})
    told = manager.story_of(id, 240)
    types = [message["info"]["type"].removeprefix("etl-") for message in told]
    assert types[:2] == ["execution-accepted", "execution-started"]
    assert types[-1] == "execution-finished"
    assert sorted(types[2:-1]) == sorted(
        4 * ["data-stream-started", "data-stream-stats", "data-stream-finished"]
    )
    assert sorted(on_kafka.rows("fact.orders", "id")) == [(n,) for n in range(1, 21)]
    row = execution(on_kafka, id)
    assert (row["state"], row["rows"], row["etl_worker"]) == ("finished", 20, instance)

    nonsense = manager.assign(instance, {"kind": "pipe", "id": "no.such"})
    assert manager.story_of(nonsense, 60)[-1]["info"]["type"] == "etl-execution-rejected"
    assert worker.end(signal.SIGINT) == 0
    worker.wait_for_its_group()
