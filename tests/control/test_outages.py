"""What manager and worker stand on fails, each part in its way: work goes on, rows come once."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import Broker
from tests.databases import Database
from tests.mounts import mounted
from tests.projects import Folder
from tests.proxy import Proxy
from tidegate.model.messages import Channel
from tidegate.ports.store import Store
from tidegate.wiring import open_parts, read_project

from .conftest import make_shop, settings
from .processes import Crew, Member, until
from .test_processes import complete, land
from .test_stopped import is_stopped

pytestmark = pytest.mark.long

CLAIM, COMMIT, ASSIGN = b"task-started", b"task-completed", b"assigned"
"""What is said in the transactions that are looked for."""
BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name = 'tidegate' AND wait_event_type = 'Lock'"
)


@dataclass
class Team:
    """A manager and a worker at work, and what they stand on."""

    folder: Folder
    store: Store
    crew: Crew
    manager: Member
    worker: Member
    landed: int = 20

    def land(self) -> None:
        land(self.folder, self.landed + 1, self.landed + 10)
        self.landed += 10

    def must_come_through(self, what: str) -> None:
        """Wait until every row is in both tables once, and every execution has its end."""
        until(lambda: complete(self.folder, self.landed), f"{what}: {self.said()}")
        until(self._is_at_rest, f"an end of every execution after {what}: {self.said()}", 60)
        assert self.manager.process.poll() is None, self.manager.said
        assert self.worker.process.poll() is None, self.worker.said

    def _is_at_rest(self) -> bool:
        held = any(offset.hostid for offset in self.store.offsets.all().values())
        return not held and not self.store.executions.open()

    def said(self) -> str:
        return "\n".join(member.said[-2000:] for member in (self.manager, self.worker))

    def dismiss(self) -> None:
        for member in (self.worker, self.manager):
            assert member.end() == 0, member.said
            member.wait_for_its_group()


@contextlib.contextmanager
def at_work(folder: Folder, for_manager: str = "", for_worker: str = "") -> Iterator[Team]:
    """Start the two, each with a way of its own to the store."""
    assert folder.tidegate("apply").returncode == 0

    def env(url: str) -> dict[str, str]:
        return {"TIDEGATE__STORE__URL": url} if url else {}

    with ExitStack() as stack:
        parts = stack.enter_context(open_parts(read_project(folder.path)))
        crew = stack.enter_context(Crew(folder))
        manager = crew.tidegate("manager", **env(for_manager))
        manager.wait_for("leads, term 1")
        hiring = ("worker", "--no-lead", "--slots", "1")
        worker = crew.tidegate(*hiring, **env(for_worker))
        team = Team(folder, parts.store, crew, manager, worker)
        team.must_come_through("the start")
        yield team


@dataclass
class Ground:
    """PostgreSQL behind two proxies, and a broker."""

    database: Database
    for_manager: Proxy
    for_worker: Proxy
    broker: Broker
    prefix: str

    def empty_the_topics(self) -> None:
        """Lose every message that is kept."""
        admin = AdminClient({"bootstrap.servers": self.broker.servers, "log_level": 0})
        reader = Consumer(
            {"bootstrap.servers": self.broker.servers, "group.id": "none", "log_level": 0}
        )
        ends = []
        for topic in Channel:
            partition = TopicPartition(f"{self.prefix}{topic}", 0)
            partition.offset = reader.get_watermark_offsets(partition, timeout=10)[1]
            ends.append(partition)
        for deleted in admin.delete_records(ends).values():
            deleted.result(30)
        reader.close()


@pytest.fixture(scope="module")
def ground(broker: Broker) -> Iterator[Ground]:
    with ExitStack() as stack:
        database = Database(Path(tempfile.mkdtemp(prefix="tidegate-pg-")))
        stack.callback(database.stop)
        for_manager, for_worker = Proxy(database.socket), Proxy(database.socket)
        stack.callback(for_manager.close)
        stack.callback(for_worker.close)
        yield Ground(database, for_manager, for_worker, broker, f"outages{os.getpid()}.")


@pytest.fixture(scope="module")
def team(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = make_shop(tmp_path_factory.mktemp("outages"))
    bus = f'url = "kafka://{ground.broker.servers}"\nprefix = "{ground.prefix}"'
    folder.write({"tidegate.toml": settings(store=f'url = "{ground.database.url}"', bus=bus)})
    with at_work(folder, ground.for_manager.url, ground.for_worker.url) as team:
        yield team
        team.dismiss()


def test_the_server_is_restarted_in_mid_transaction(team: Team, ground: Ground) -> None:
    for _ in range(3):
        with ground.database.connect() as holding, ground.database.connect() as looking:
            holding.execute("BEGIN")
            holding.execute("LOCK TABLE offsets, etl_executions, leadership")
            team.land()
            until(lambda: looking.execute(BLOCKED).fetchall()[0][0], "one waits in its transaction")
            ground.database.restart()
            with contextlib.suppress(psycopg.OperationalError):
                holding.execute("COMMIT")
        team.must_come_through("a restart of the store")


def test_the_broker_is_stopped_and_started(team: Team, ground: Ground) -> None:
    ground.broker.stop()
    try:
        team.land()
        team.must_come_through("a start without the broker")
    finally:
        ground.broker.start()
    team.land()
    team.must_come_through("the return of the broker")


def test_connections_are_cut_again_and_again(team: Team, ground: Ground) -> None:
    for _ in range(20):
        team.land()
        ground.for_worker.cut()
        ground.for_manager.cut()
        time.sleep(0.5)
    team.must_come_through("the cuts")


def test_answers_of_the_store_are_late(team: Team, ground: Ground) -> None:
    ground.for_worker.delay = ground.for_manager.delay = 0.1
    try:
        team.land()
        team.must_come_through("late answers")
    finally:
        ground.for_worker.delay = ground.for_manager.delay = 0.0


@pytest.mark.parametrize("marker", [CLAIM, COMMIT])
def test_the_worker_does_not_hear_that_it_committed(
    team: Team, ground: Ground, marker: bytes
) -> None:
    ground.for_worker.lose_the_answer_to(marker)
    team.land()
    assert ground.for_worker.lost.wait(120), team.said()
    team.must_come_through(f"the answer to {marker!r} was lost")


def test_the_manager_does_not_hear_that_it_assigned(team: Team, ground: Ground) -> None:
    ground.for_manager.lose_the_answer_to(ASSIGN)
    team.land()
    assert ground.for_manager.lost.wait(120), team.said()
    team.must_come_through("the answer to an assign was lost")


def test_every_message_is_lost(team: Team, ground: Ground) -> None:
    for _ in range(3):
        ground.empty_the_topics()
        team.land()
        for _ in range(20):
            ground.empty_the_topics()
        team.must_come_through("the topics were emptied")


def test_a_worker_that_is_to_end_does_not_wait_for_a_store_that_is_gone(
    shop: Folder, crew: Crew
) -> None:
    database = Database(Path(tempfile.mkdtemp(prefix="tidegate-pg-")))
    proxy = Proxy(database.socket)
    try:
        shop.write({"tidegate.toml": settings(store=f'url = "{database.url}"')})
        assert shop.tidegate("apply").returncode == 0
        manager = crew.tidegate("manager")
        manager.wait_for("leads, term 1")
        stop = {"TIDEGATE_CRASHPOINT": "block.before_commit:1:stop"}
        hiring = ("worker", "--no-lead", "--slots", "1")
        worker = crew.tidegate(*hiring, TIDEGATE__STORE__URL=proxy.url, **stop)
        until(lambda: is_stopped(worker.process.pid), "it has an outcome in hand")
        # Before the leader takes it for dead.
        manager.kill()
        proxy.close()
        os.kill(worker.process.pid, signal.SIGCONT)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("cannot be reached")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(90) == 0, worker.said
        worker.wait_for_its_group()
        crew.tidegate("worker", "--slots", "1")
        until(lambda: complete(shop, 20), "another one goes on from there")
    finally:
        proxy.close()
        database.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    folder = tmp_path / "small"
    with mounted(folder, "-t", "tmpfs", "-o", "size=8m", "tidegate"):
        yield folder


def fill(folder: Path) -> Path:
    """Leave no room at all."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(512))
    return filler


def test_the_disk_of_the_store_is_full_and_messages_are_lost(
    tmp_path: Path, small_disk: Path
) -> None:
    folder = make_shop(tmp_path / "shop")
    url = f"sqlite:///{small_disk}/store.db"
    folder.write({"tidegate.toml": settings(store=f'url = "{url}"')})
    with at_work(folder) as team:
        for _ in range(2):
            team.land()
            filler = fill(small_disk)
            for member in (team.manager, team.worker):
                until(lambda: "disk is full" in member.said, "it says what is wrong", 60)  # noqa: B023
            filler.unlink()
            team.must_come_through("the disk was full")
        # On the embedded bus, too, every message may be lost.
        for _ in range(3):
            team.land()
            for _ in range(20):
                team.store.messages.trim(2**62).result()
                time.sleep(0.1)
            team.must_come_through("the messages were deleted")
        team.dismiss()
