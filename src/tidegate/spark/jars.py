"""Fetches the jars of jars.xml, each set once, into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tidegate.errors import SetupError
from tidegate.spark.java import find_java

SPARK, S3 = "spark", "s3"
"""The sets that Spark needs beside its own jars, and that one with a lake on S3 needs besides."""


def spark_jars(*, s3: bool = False) -> list[Path]:
    """Give the jars for Spark's class path."""
    return [jar for conf in (SPARK, S3)[: 1 + s3] for jar in jars_of(conf)]


def jars_of(conf: str) -> list[Path]:
    """Give a set of jars, fetching it first if this is the first call ever."""
    folder = jars_folder(conf)
    if _missing(folder, conf) is not None:
        _fetch(folder, conf)
    return sorted(folder.glob("*.jar"))


def jars_folder(conf: str = SPARK) -> Path:
    """Name the folder of these very jars: another list of jars gets another folder."""
    listed = "\n".join(f"{one.attrib}" for one in _listed(conf))
    return cache_folder() / f"{conf}-{hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def cache_folder() -> Path:
    """Name the folder for what is made or fetched once."""
    own = os.environ.get("TIDEGATE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def _list() -> str:
    return files("tidegate").joinpath("jars.xml").read_text(encoding="utf-8")


def _listed(conf: str) -> list[ElementTree.Element]:
    """Give what the list names for a set."""
    named = ElementTree.fromstring(_list()).iter("dependency")
    return [one for one in named if one.get("conf", "").partition("->")[0] == conf]


def _fetch(folder: Path, conf: str) -> None:
    """Fetch into a folder beside the final one; the rename is all or nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder.with_suffix(".lock")):
            if _missing(folder, conf) is None:
                return
            half = f"fetching-{conf}-"
            _sweep(folder, half)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=half) as scratch:
                _retrieve(Path(scratch), conf)
                fetched = Path(scratch) / "jars" / conf
                missing = _missing(fetched, conf)
                if missing is not None:
                    raise SetupError(
                        f"the jar {missing} did not arrive whole; run the command again"
                    )
                os.rename(fetched, folder)
    except OSError as error:
        raise SetupError(
            f"the jars for {conf.capitalize()} cannot be kept in {folder.parent}"
            f" ({error.strerror}); name another folder in TIDEGATE_CACHE"
        ) from error


def _sweep(folder: Path, half: str) -> None:
    """Remove what a fetch that was killed left behind, and jars that somebody thinned out."""
    for left in (folder, *folder.parent.glob(f"{half}*")):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait for whoever does the same, in whatever process."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(scratch: Path, conf: str) -> None:
    (scratch / "jars.xml").write_text(_list(), encoding="utf-8")
    pattern = f"{scratch}/jars/[conf]/[artifact]-[revision].[ext]"
    own = os.environ.get("TIDEGATE_IVY_SETTINGS")
    command = [
        *(str(find_java()), "-jar", str(_ivy())),
        *(("-settings", own) if own else ()),
        *("-ivy", str(scratch / "jars.xml"), "-cache", str(scratch / "ivy")),
        *("-confs", conf, "-retrieve", pattern, "-types", "jar", "bundle"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        unresolved = [line for line in lines if "UNRESOLVED" in line or "Exception" in line]
        cause = unresolved[0] if unresolved else (lines[-1] if lines else "no answer")
        raise SetupError(
            f"the jars for {conf.capitalize()} could not be fetched from Maven's repository"
            f" ({cause}); check the network, or point TIDEGATE_IVY_SETTINGS at an Ivy settings"
            " file that names a mirror"
        )


def _ivy() -> Path:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("pyspark is not installed; install tidegate with its dependencies")
    found = sorted((Path(spec.submodule_search_locations[0]) / "jars").glob("ivy-*.jar"))
    if not found:
        raise SetupError("this pyspark has no Ivy among its jars; install pyspark from PyPI")
    return found[-1]


def _missing(folder: Path, conf: str) -> str | None:
    """Hold a folder against the list: name a jar that is not there, or not whole."""
    for wanted in _listed(conf):
        name = f"{wanted.get('name')}-{wanted.get('rev')}.jar"
        if not zipfile.is_zipfile(folder / name):
            return name
    return None


if __name__ == "__main__":
    # `make setup` fetches Spark's ahead of the first run.
    try:
        spark_jars()
    except SetupError as error:
        sys.exit(str(error))
