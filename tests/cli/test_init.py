"""`tidegate init`: a project that is sound as it stands; nothing that was there is touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of `init`'s, made once: it starts a Python of its own to land its data."""
    folder = tmp_path_factory.mktemp("init") / "my shop"
    command = [sys.executable, "-m", "tidegate", "init", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Next: cd '{folder}', then: tidegate run" in done.stdout
    return folder


def test_it_passes_check_with_its_data_landed(cli: Cli, made: Path) -> None:
    assert cli("-C", str(made), "check", "--json").json() == {
        "ok": True,
        "problems": [],
        "warnings": [],
    }
    assert (made / "lake" / "stage" / "orders" / "_delta_log").is_dir()


def test_it_has_the_files_that_it_should_and_no_others(made: Path) -> None:
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert {file for file in files if not file.startswith(("lake/", ".tidegate/"))} == {
        *(".gitignore", "README.md", "land.py", "lineage.yaml", "tidegate.toml"),
        *("views/hours.sql", "views/orders.sql", "views/segments.sql"),
    }


def test_every_topic_can_be_asked_about_at_once(cli: Cli, made: Path) -> None:
    rows = cli("-C", str(made), "lag", "--json").json()
    assert {row["topic"] for row in rows} == {"fact.orders", "fact.hours", "mart.segments"}
    assert cli("-C", str(made), "why", "fact.orders", "--json").json()["due"] is True


def test_a_folder_with_something_in_it_is_refused_and_left_as_it_was(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "tidegate.toml").write_text("mine")
    answer = cli("init", str(tmp_path))
    assert (answer.code, answer.out) == (2, "")
    assert answer.sentence == f"{tmp_path} is not empty; name a new folder"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("tidegate.toml", "mine")
    ]


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300, "/proc/nothing"])
def test_a_place_that_cannot_be_written_is_told_in_a_sentence(
    cli: Cli, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("mine")
    answer = cli("init", str(tmp_path / place))
    assert (answer.code, answer.out) == (2, "")
    assert "not empty" in answer.sentence or "cannot be written: " in answer.sentence
    assert (tmp_path / "file").read_text() == "mine"


def test_data_that_does_not_land_is_a_failure_that_says_why(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    answer = cli("init", str(tmp_path / "new"))
    assert answer.code == 1
    assert "is made, but its land.py failed" in answer.sentence
