"""Makes a new project from the template that the package carries, with some data to start on."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from tidegate.errors import TidegateError, WrongUse


def make_project(folder: Path) -> list[str]:
    """Write the template into a new or empty folder, land its data, and name the files."""
    made: list[str] = []
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise WrongUse(f"{folder} is not empty; name a new folder")
        with as_file(files("tidegate") / "templates" / "project") as template:
            for path in sorted(path for path in template.rglob("*") if path.is_file()):
                if "__pycache__" in path.parts:
                    continue
                name = str(path.relative_to(template))
                target = folder / (".gitignore" if name == "gitignore" else name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
                made.append(str(target.relative_to(folder)))
    except OSError as error:
        raise WrongUse(f"{folder} cannot be written: {error.strerror}") from None
    _land(folder.resolve())
    return made


def _land(folder: Path) -> None:
    landed = subprocess.run(
        [sys.executable, folder / "land.py"], capture_output=True, text=True, check=False
    )
    if landed.returncode != 0:
        said = landed.stderr.strip().splitlines() or ["it said nothing"]
        raise TidegateError(
            f"the project in {folder} is made, but its land.py failed ({said[-1][:300]});"
            " run it again by hand"
        )
