"""Opening a store: made, migrated, reopened, or refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import make_url, text

from tidegate.errors import StoreError
from tidegate.store import open_store
from tidegate.store.backends import PostgresBackend, hold
from tidegate.store.migrations.steps import run_steps, scripts
from tidegate.store.schema import REVISION, VERSION_TABLE, metadata

from .conftest import LOCKED_ROLE, Open, Postgres
from .scenes import KINDS, NOW, committed, definition, everything


def test_a_new_store_is_made_and_empty(blank_url: str, opened: Open) -> None:
    assert everything(opened(blank_url)) == ({}, [], {}, [], {}, {})


def test_reopening_keeps_everything(url: str, opened: Open) -> None:
    first = open_store(url, KINDS)
    first.definitions.apply([definition()], [], "ann", NOW)
    committed(first, "e1")
    kept = everything(first)
    first.close()
    assert everything(opened(url)) == kept


def test_the_revision_is_the_newest_step() -> None:
    assert scripts().get_current_head() == REVISION


def test_the_steps_lead_to_the_tables_that_are_used(blank_url: str, opened: Open) -> None:
    with opened(blank_url).backend.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "include_object": lambda _object, name, *_rest: name != VERSION_TABLE,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_a_store_of_a_newer_tidegate_is_refused(blank_url: str) -> None:
    store = open_store(blank_url, KINDS)
    with store.backend.engine.connect() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    store.close()
    with pytest.raises(StoreError, match=r"written by a newer Tidegate.*9999.*update Tidegate"):
        open_store(blank_url, KINDS)


def test_a_migration_that_was_cut_short_left_nothing_and_is_done_again(
    blank_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.store.backends.SqliteBackend.commit", cut_short)
        patched.setattr("tidegate.store.backends.PostgresBackend.commit", cut_short)
        with pytest.raises(KeyboardInterrupt):
            open_store(blank_url, KINDS)
    committed(opened(blank_url), "e1")


OPENER = """
import sys
from tidegate.store import open_store
from tidegate.model.execution import Execution, ExecutionState
from tidegate.model.flow import Kind
url, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
store = open_store(url, {})
made = Execution(name, Kind.TABLE, "fact.t", "fact.t", ExecutionState.ASSIGNED, assigned_at=1)
store.executions.assign(made)
store.close()
print("done", flush=True)
"""


def test_processes_that_open_a_new_store_at_once_all_succeed(blank_url: str, opened: Open) -> None:
    names = ["a", "b"]
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, blank_url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    # Each has started and imported: now let them all go.
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.close()
    for opener in openers:
        with opener:
            assert opener.stdout is not None
            assert opener.stdout.read() == "done\n"
        assert opener.returncode == 0
    assert sorted(made.id for made in opened(blank_url).executions.list()) == names


def test_who_comes_second_waits_for_the_migration_of_the_first(
    postgres: Postgres, opened: Open, request: pytest.FixtureRequest
) -> None:
    database = postgres.make_database()
    request.addfinalizer(lambda: postgres.drop_database(database))
    url = postgres.url(database)
    first = PostgresBackend.at(make_url(url))
    with first.engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql(first.begin)
        hold(connection, "schema")
        run_steps(connection, None)
        second = pool.submit(opened, url)
        postgres.wait_until_blocked(database)
        first.commit(connection)
        assert everything(second.result()) == ({}, [], {}, [], {}, {})
    first.engine.dispose()


def test_a_store_of_today_is_opened_without_alembic(url: str) -> None:
    open_store(url, KINDS).close()
    script = (
        "import sys; from tidegate.store import open_store; open_store(sys.argv[1], {}).close();"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, url], check=False).returncode == 0


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("these are my notes, " * 100)
    with pytest.raises(StoreError, match=r"store\.db is not an SQLite database; move") as refused:
        open_store(f"sqlite:///{path}", KINDS)
    assert refused.value.__suppress_context__
    assert path.read_text().startswith("these are my notes")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"folder .*/file/below cannot be made \(Not a directory"):
        open_store(f"sqlite:///{tmp_path}/file/below/store.db", KINDS)


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreError, match=r"store\.db cannot be opened; check"):
        open_store(f"sqlite:///{tmp_path}/store.db", KINDS)


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "lock"
    with pytest.raises(StoreError, match=r"cannot be locked \(No such file.*missing/lock"):
        open_store(f"sqlite:///{tmp_path}/store.db", KINDS, lock_path=missing)


def test_writers_queue_at_the_lock_that_was_given(tmp_path: Path) -> None:
    lock = tmp_path / "store.lock"
    open_store(f"sqlite:///{tmp_path}/store.db", KINDS, lock_path=lock).close()
    assert lock.exists()
    assert not (tmp_path / "store.db.lock").exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="needs a file"):
        open_store(url, KINDS)


@pytest.mark.parametrize("url", ["mysql://ann:s3cret@host/db", "ann:s3cret@host", ""])
def test_another_kind_of_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StoreError, match=r"write sqlite:////path/store\.db or") as refused:
        open_store(url, KINDS)
    assert "s3cret" not in str(refused.value)


def test_a_wrong_password_is_said_but_not_shown(postgres: Postgres) -> None:
    for url in (
        postgres.url("postgres", f"{LOCKED_ROLE}:s3cret"),
        f"{postgres.url('postgres', LOCKED_ROLE)}&password=s3cret",
    ):
        with pytest.raises(StoreError, match="refused the login; check user and") as refused:
            open_store(url, KINDS)
        assert "s3cret" not in str(refused.value)
        assert refused.value.__suppress_context__


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"ann@127\.0\.0\.1:1/shop cannot be reached") as refused:
        open_store("postgresql://ann:s3cret@127.0.0.1:1/shop", KINDS)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_database_that_is_not_there_is_named(postgres: Postgres) -> None:
    with pytest.raises(StoreError, match=r'nowhere cannot be reached .*"nowhere" does not exist'):
        open_store(postgres.url("nowhere"), KINDS)


def test_a_role_without_rights_is_told(postgres: Postgres, request: pytest.FixtureRequest) -> None:
    database = postgres.make_database()
    request.addfinalizer(lambda: postgres.drop_database(database))
    with pytest.raises(StoreError, match="does not give this user the rights it needs"):
        open_store(postgres.url(database, f"{LOCKED_ROLE}:right"), KINDS)
