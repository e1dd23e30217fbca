"""Commands that only look start no JVM and import no Spark; `--help` does not keep one waiting."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shop
from tests.contract.scenes import committed

TIDEGATE = Path(sys.executable).with_name("tidegate")
LOOKING = """
import sys
from tidegate.cli.app import main

for command in (
    "check", "lag", "why fact.orders", "offsets show", "logs fact.orders", "executions", "etl-log",
    "apply", "offsets set fact.orders --last 1800000000000,5", "offsets unlock fact.orders",
):
    sys.argv = ["tidegate", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
heavy = ("pyspark", "py4j")
print("imported:", [name for name in heavy if name in sys.modules], file=sys.stderr)
"""
HELP = """
import sys
from tidegate.cli.app import main

sys.argv = ["tidegate", "--help"]
try:
    main()
except SystemExit:
    pass
heavy = ("pyspark", "sqlalchemy", "sqlglot", "pydantic", "pyarrow", "deltalake", "pandas", "numpy",
         "yaml", "rich", "alembic", "asyncio")
print("imported:", [name for name in heavy if name in sys.modules], file=sys.stderr)
"""
CHECK = """
import sys
from tidegate.cli.app import main

sys.argv = ["tidegate", "check"]
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = ("pyspark", "py4j", "sqlalchemy", "alembic", "pandas")
print("imported:", [name for name in heavy if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def no_java(landed: Shop) -> dict[str, str]:
    """An environment whose only `java` tells on whoever starts it."""
    home = landed.path / "java home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho started >> '{home}/marker'\nexit 1\n")
    java.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if "TIDEGATE" not in name}
    return {**kept, "JAVA_HOME": str(home), "PATH": str(home / "bin")}


def _started_java(env: dict[str, str]) -> bool:
    return (Path(env["JAVA_HOME"]) / "marker").exists()


@pytest.mark.parametrize("script", [LOOKING, CHECK], ids=["looking", "check"])
def test_looking_starts_no_jvm_and_imports_no_spark(
    landed: Shop, no_java: dict[str, str], script: str
) -> None:
    with landed.store() as store:
        committed(store, "e-1")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=landed.path,
        env=no_java,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "imported: []\n")
    assert not _started_java(no_java)


def test_the_marker_would_tell(landed: Shop, no_java: dict[str, str]) -> None:
    done = subprocess.run(
        [str(TIDEGATE), "doctor", "--json"],
        cwd=landed.path,
        env=no_java,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert _started_java(no_java)


def test_help_imports_nothing_that_is_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.stderr == "imported: []\n"
    assert "offsets" in done.stdout


def test_help_is_there_in_less_than_a_third_of_a_second() -> None:
    # The time of the processor: what other tests do beside this one must not count.
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([TIDEGATE, "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(times) < 0.3


@pytest.mark.parametrize(("command", "buffered"), [("check", "1"), ("lag", "")])
def test_a_reader_that_goes_away_is_no_failure(landed: Shop, command: str, buffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [TIDEGATE, command],
        cwd=landed.path,
        env={**os.environ, "PYTHONUNBUFFERED": buffered},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_disk_that_is_full_is_a_sentence(landed: Shop) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [TIDEGATE, "check"],
            cwd=landed.path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "tidegate: No space left on device\n")
