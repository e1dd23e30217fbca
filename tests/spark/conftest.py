"""One Spark for the whole test process, and projects that run on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.projects import SPARK_CONF, Folder
from tidegate.cli.project import apply_changes, changes_of
from tidegate.cli.running import NoProgress
from tidegate.cli.tables import chosen
from tidegate.ports.kinds import Report
from tidegate.spark.session import SparkHost
from tidegate.tables.graph import select
from tidegate.wiring import Parts, open_parts, read_project


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    host = SparkHost("local[2]", SPARK_CONF, tmp_path_factory.mktemp("spark"))
    yield host
    host.stop()


@dataclass(frozen=True)
class Shop(Folder):
    """A project that runs in this process, on the shared Spark."""

    spark: SparkHost

    def run(self, *selectors: str) -> Report:
        """Do what `tidegate run` does, without the price of another JVM."""
        with self._held() as parts:
            topics = select(parts.topics, selectors)
            return parts.foreground(self.spark, NoProgress()).run(topics)

    def rebuild(self, topic: str) -> Report:
        """Do what `tidegate rebuild` does."""
        with self._held() as parts:
            topics = chosen(parts.topics, topic)
            return parts.rebuilder(self.spark, NoProgress()).run(topics)

    @contextmanager
    def _held(self) -> Iterator[Parts]:
        project = read_project(self.path)
        project.require_sound()
        with open_parts(project) as parts:
            apply_changes(parts, changes_of(parts))
            parts.holders.hold()
            try:
                yield parts
            finally:
                parts.holders.release()


@pytest.fixture
def shop(tmp_path: Path, spark: SparkHost) -> Iterator[Shop]:
    yield Shop(tmp_path, spark)
    forget_tables(spark)


def forget_tables(spark: SparkHost) -> None:
    """Let the next project use the same names for other tables."""
    session = spark.fresh()
    for database in session.catalog.listDatabases():
        if database.name != "default":
            session.sql(f"DROP SCHEMA `{database.name}` CASCADE")
    spark.catalogued.clear()
