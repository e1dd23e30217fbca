"""Fetches the jars that Spark needs beside its own, once, into the user's cache."""

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

from tidegate.engine.java import find_java
from tidegate.errors import SetupError

_SCRATCH = "fetching-"
_SPARK, _S3 = "jars.xml", "jars-s3.xml"
"""The lists of jars: what every Spark needs, and what one with a lake on S3 needs beside it."""


def spark_jars(*, s3: bool = False) -> list[Path]:
    """Give the jars for Spark's class path, fetching them first if this is the first call ever."""
    return [jar for listed in (_SPARK, _S3)[: 1 + s3] for jar in _fetched(listed)]


def jars_folder(listed: str = _SPARK) -> Path:
    """Name the folder of these very jars: another list of jars gets another folder."""
    digest = hashlib.sha256(_list(listed).encode()).hexdigest()[:16]
    return _cache() / f"jars-{digest}"


def _fetched(listed: str) -> list[Path]:
    folder = jars_folder(listed)
    if _missing(folder, listed) is not None:
        _fetch(folder, listed)
    return sorted((folder / "spark").glob("*.jar"))


def _cache() -> Path:
    own = os.environ.get("TIDEGATE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def _list(name: str) -> str:
    return files("tidegate").joinpath(name).read_text(encoding="utf-8")


def _fetch(folder: Path, listed: str) -> None:
    """Fetch into a folder beside the final one; the rename is all or nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.with_suffix(".lock")):
            if _missing(folder, listed) is None:
                return
            _sweep(folder)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_SCRATCH) as scratch:
                _retrieve(Path(scratch), listed)
                missing = _missing(Path(scratch) / "jars", listed)
                if missing is not None:
                    raise SetupError(
                        f"the jar {missing} did not arrive whole; run the command again"
                    )
                os.rename(Path(scratch) / "jars", folder)
    except OSError as error:
        raise SetupError(
            f"the jars for Spark cannot be kept in {folder.parent} ({error.strerror}); name"
            " another folder in TIDEGATE_CACHE"
        ) from error


def _sweep(folder: Path) -> None:
    """Remove what a fetch that was killed left behind, and jars that somebody thinned out."""
    for left in (folder, *folder.parent.glob(f"{_SCRATCH}*")):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(scratch: Path, listed: str) -> None:
    (scratch / "jars.xml").write_text(_list(listed), encoding="utf-8")
    pattern = f"{scratch}/jars/[conf]/[artifact]-[revision].[ext]"
    own = os.environ.get("TIDEGATE_IVY_SETTINGS")
    command = [
        *(str(find_java()), "-jar", str(_ivy())),
        *(("-settings", own) if own else ()),
        *("-ivy", str(scratch / "jars.xml"), "-cache", str(scratch / "ivy")),
        *("-retrieve", pattern, "-types", "jar", "bundle"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        unresolved = [line for line in lines if "UNRESOLVED" in line or "Exception" in line]
        cause = unresolved[0] if unresolved else (lines[-1] if lines else "no answer")
        raise SetupError(
            f"the jars for Spark could not be fetched from Maven's repository ({cause});"
            " check the network, or point TIDEGATE_IVY_SETTINGS at an Ivy settings file"
            " that names a mirror"
        )


def _ivy() -> Path:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("pyspark is not installed; install tidegate with its dependencies")
    found = sorted((Path(spec.submodule_search_locations[0]) / "jars").glob("ivy-*.jar"))
    if not found:
        raise SetupError("this pyspark has no Ivy among its jars; install pyspark from PyPI")
    return found[-1]


def _missing(folder: Path, listed: str) -> str | None:
    """Hold a folder against the list: name a jar that is not there, or not whole."""
    module = ElementTree.fromstring(_list(listed))
    for wanted in module.iter("dependency"):
        name = f"{wanted.get('name')}-{wanted.get('rev')}.jar"
        jar = folder / str(wanted.get("conf", "")).partition("->")[0] / name
        if not jar.is_file() or not zipfile.is_zipfile(jar):
            return name
    return None


if __name__ == "__main__":
    # `make setup` fetches them ahead of the first run.
    try:
        spark_jars()
    except SetupError as error:
        sys.exit(str(error))
