"""Makes a new project from the template that the package carries, with some data to start on."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from tidegate.errors import WrongUse


def make_project(folder: Path) -> list[str]:
    """Write the template into a new or empty folder, land its data, and name the files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUse(f"{folder} is not empty; name a new folder")
    made: list[str] = []
    try:
        with as_file(files("tidegate") / "templates" / "project") as template:
            for path in sorted(path for path in template.rglob("*") if path.is_file()):
                name = str(path.relative_to(template))
                target = folder / (".gitignore" if name == "gitignore" else name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
                made.append(str(target.relative_to(folder)))
    except OSError as error:
        raise WrongUse(f"{folder} cannot be written: {error.strerror}") from None
    landed = subprocess.run(
        [sys.executable, folder / "land.py"], capture_output=True, text=True, check=False
    )
    if landed.returncode != 0:
        raise WrongUse(f"the project is made, but land.py failed: {landed.stderr.strip()[-300:]}")
    return made
