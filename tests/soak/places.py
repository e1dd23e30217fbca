"""A PostgreSQL server and a Kafka broker for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers import Broker
from tests.databases import Database


@contextmanager
def store_settings(kind: str, folder: Path) -> Iterator[str]:
    """Give what stands in [store]."""
    if kind == "sqlite":
        yield ""
        return
    database = Database(folder / "postgres")
    try:
        yield f'url = "{database.url}"'
    finally:
        database.stop()


@contextmanager
def bus_settings(kind: str, folder: Path) -> Iterator[str]:
    """Give what stands in [bus]."""
    if kind == "embedded":
        yield ""
        return
    (folder / "kafka").mkdir()
    broker = Broker(folder / "kafka")
    try:
        broker.start()
        yield f'url = "kafka://{broker.servers}"'
    finally:
        broker.stop()
