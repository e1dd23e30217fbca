"""The archive of classes that lets Spark's JVM start soon: made once, kept beside the jars.

A JVM takes from it, as they stand, the classes that it would else read from jars and prove. It fits
one Java, one list of jars and their places; elsewhere a JVM goes on without. To make it costs a
run of Spark and seconds at its end, so no command does that by the way: the set-up does.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from pyspark import __version__ as pyspark_version
from pyspark.find_spark_home import _find_spark_home

from tidegate.errors import SetupError
from tidegate.spark.jars import cache_folder, one_at_a_time, spark_jars
from tidegate.spark.java import find_java, java_release

TRAINING = 1
"""Raise it when `archive_training` changes: what it does decides which classes are in."""
_MODULE = "tidegate.spark.archive_training"
_NAME = re.compile(r"classes-(\w{8})-\w{16}-(\d+)\.jsa")
_HALF = "making-classes-"
_MONTH = 30 * 24 * 3600.0
_LONGEST = 900.0


def archive_for(java: Path) -> Path | None:
    """Give the archive that fits, if there is a whole one."""
    for found in cache_folder().glob(f"classes-{_place()}-{_fit(java)}-*.jsa"):
        if _is_whole(found):
            with suppress(OSError):
                # By this it is seen to be in use.
                os.utime(found)
            return found
    return None


def make_archive(say: Callable[[str], None] = lambda _: None) -> Path:
    """Give the archive that fits, making it first if need be, one process at a time.

    Whoever calls this can go on without: nothing but the time to start depends on it.
    """
    java, folder = find_java(), cache_folder()
    spark_jars()
    try:
        with one_at_a_time(folder / f"classes-{_place()}.lock"):
            found = archive_for(java)
            if found is not None:
                return found
            say("Preparing Java's classes for Spark (once, about a minute)")
            for left in folder.glob(f"{_HALF}{_place()}-*"):
                rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{_HALF}{_place()}-") as scratch:
                made = _made(Path(scratch))
                kept = folder / f"classes-{_place()}-{_fit(java)}-{made.stat().st_size}.jsa"
                os.rename(made, kept)
    except OSError as error:
        raise SetupError(f"it cannot be kept in {folder} ({error.strerror})") from error
    _remove_old(kept)
    return kept


def _place() -> str:
    """Tell one installation of Spark from others that use the same cache."""
    return hashlib.sha256(str(_home()).encode()).hexdigest()[:8]


def _home() -> Path:
    return Path(_find_spark_home())


def _fit(java: Path) -> str:
    """Name all that the JVM holds an archive against; it would refuse one that differs."""
    # Java takes the jars of a folder in the order that the folder gives them in.
    jars = [*spark_jars(), *map(Path, os.scandir(_home() / "jars"))]
    seen = [(jar, jar.stat()) for jar in jars]
    parts = [str(TRAINING), java_release(java), pyspark_version]
    parts += [f"{jar} {stat.st_size} {stat.st_mtime_ns}" for jar, stat in seen]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_whole(archive: Path) -> bool:
    """Hold an archive against the size in its name: a JVM crashes over half a one."""
    named = _NAME.fullmatch(archive.name)
    try:
        return named is not None and archive.stat().st_size == int(named[2])
    except OSError:
        return False


def _made(scratch: Path) -> Path:
    """Have another process make it, since a process has one Spark and this may have its own."""
    made = scratch / "classes.jsa"
    command = [sys.executable, "-m", _MODULE, str(made)]
    try:
        done = subprocess.run(
            command,
            # A folder of settings on the class path would not let it be made.
            env={name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.SubprocessError as error:
        raise SetupError("Spark did not end in time") from error
    if done.returncode != 0 or not made.exists():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SetupError(lines[-1] if lines else "Java made none")
    with made.open("rb") as file:
        os.fsync(file.fileno())
    return made


def _remove_old(kept: Path) -> None:
    """Remove what this installation used before, and what none has used for a month."""
    for path in kept.parent.glob("classes-*.jsa"):
        named = _NAME.fullmatch(path.name)
        if named is None or path == kept:
            continue
        with suppress(OSError):
            if named[1] == _place() or path.stat().st_mtime < time.time() - _MONTH:
                path.unlink()


def main() -> None:
    """Make the archive, and say on one line what goes on; without one Spark starts later."""
    try:
        make_archive(say=print)
    except SetupError as error:
        print(
            f"Spark will start without an archive of classes, in longer: {error}", file=sys.stderr
        )


if __name__ == "__main__":
    main()
