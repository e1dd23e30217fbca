"""Places for a bus, each a project's folder: on SQLite, on PostgreSQL, on a broker."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from psycopg.conninfo import conninfo_to_dict

from tests.brokers import Broker
from tidegate.bus import open_bus
from tidegate.model.messages import Assign, Finished, Heartbeat, InstanceState, Message, parse
from tidegate.ports.outside import Bus, Inbox
from tidegate.ports.store import Delivery
from tidegate.runtime import RealRuntime
from tidegate.settings import load_settings
from tidegate.store import SqlStore, open_store

from .conftest import Postgres
from .scenes import KINDS

NOW = 1_700_000_000_123
PATIENCE_SECONDS = 30.0
OPENING = """
import sys, time
from pathlib import Path
from tidegate.bus import open_bus
from tidegate.model.messages import *
from tidegate.runtime import RealRuntime
from tidegate.settings import load_settings
from tidegate.store import open_store
settings = load_settings(Path(sys.argv[1]))
store = open_store(settings.store_url, {})
bus = open_bus(settings.bus, settings.store_url, store.messages, RealRuntime().now)
"""


class Outage(Protocol):
    """Takes what is under a bus away, for as long as the block lasts."""

    def __call__(self) -> Iterator[None]: ...


@dataclass
class Place:
    """Opens buses in one place, each with a store of its own, as processes do."""

    folder: Path
    outage: Outage
    stack: ExitStack = field(default_factory=ExitStack)

    def open(self) -> Bus:
        return self.open_both()[0]

    def open_both(self) -> tuple[Bus, SqlStore]:
        settings = load_settings(self.folder)
        store = open_store(settings.store_url, KINDS)
        self.stack.callback(store.close)
        bus = open_bus(settings.bus, settings.store_url, store.messages, RealRuntime().now)
        self.stack.callback(bus.close)
        return bus, store

    @contextmanager
    def away(self) -> Iterator[None]:
        yield from self.outage()

    @contextmanager
    def process(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """Run a script in another process, with a `bus` in it, until the block ends."""
        child = subprocess.Popen(
            [sys.executable, "-c", OPENING + script, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def sqlite_outage(url: str) -> Outage:
    """Another program locks the file."""

    def outage() -> Iterator[None]:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
        connection.close()

    return outage


def postgres_outage(postgres: Postgres, url: str) -> Outage:
    """Every connection is cut, and no new one is let in."""

    def outage() -> Iterator[None]:
        database = conninfo_to_dict(url)["dbname"]
        postgres.admin.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        postgres.cut_connections()
        yield
        postgres.admin.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")

    return outage


def broker_outage(broker: Broker) -> Outage:
    """The broker dies, and is started again."""

    def outage() -> Iterator[None]:
        broker.stop()
        try:
            yield
        finally:
            broker.start()

    return outage


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def heartbeat(number: int) -> Heartbeat:
    return Heartbeat(uuid(number), InstanceState.IDLE, NOW + number)


def finished(number: int) -> Finished:
    return Finished(uuid(number), uuid(0), NOW + number)


def assign(instance: int, number: int = 0) -> Assign:
    return Assign(uuid(instance), uuid(number), {"kind": "table", "id": "fact.ö"}, NOW, 7)


def read(deliveries: Sequence[Delivery]) -> list[Message]:
    return [parse(delivery.channel, delivery.body) for delivery in deliveries]


def take(inbox: Inbox, count: int) -> list[Delivery]:
    """Receive until so many are there."""
    taken: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(taken) < count:
        assert time.monotonic() < deadline, f"only {len(taken)} of {count} came"
        taken += inbox.receive(1.0)
    return taken


def take_until(inbox: Inbox, wanted: Message) -> list[Message]:
    """Receive until one message has come."""
    taken: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while wanted not in taken:
        assert time.monotonic() < deadline, f"it never came, only {taken}"
        taken += read(inbox.receive(1.0))
    return taken
