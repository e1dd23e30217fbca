"""Finds a Java that Spark can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tidegate.errors import SetupError

LEAST = 17
INSTALLED = Path("/usr/lib/jvm")


def find_java() -> Path:
    """Give the `java` to use: JAVA_HOME's, the PATH's, else any that is installed."""
    seen: list[str] = []
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= LEAST:
            return java
        seen.append(f"{java} ({'no Java' if version is None else f'Java {version}'})")
    found = f"; found only {', '.join(seen)}" if seen else ""
    raise SetupError(
        f"Spark needs Java {LEAST} or later and none was found{found}; install one"
        " (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def java_version(java: Path) -> int | None:
    """Ask a `java` for its major version; None when it does not answer like one."""
    found = re.search(r'version "(?:1\.)?(\d{1,4})', _answer(java))
    return int(found[1]) if found else None


def java_release(java: Path) -> str:
    """Tell one `java` from every other: its place, and its release to the build."""
    home = java.resolve().parent.parent
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = _answer(java)
    return f"{home}\n{release}"


def _answer(java: Path) -> str:
    """Give what it says of itself; nothing where it fails."""
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stderr + answer.stdout


def _candidates() -> list[Path]:
    found: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path))
    found += sorted(INSTALLED.glob("*/bin/java"), reverse=True)
    return list(dict.fromkeys(found))
