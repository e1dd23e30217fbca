"""Running the steps that a store still lacks. Nothing imports this before one is lacking."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from tidegate.errors import StoreError

# Alembic hands the migration to its scripts through module variables.
_one_at_a_time = threading.Lock()


def scripts() -> ScriptDirectory:
    """Give the steps that this Tidegate knows."""
    return ScriptDirectory.from_config(_config())


def run_steps(connection: Connection, stored: str | None) -> None:
    """Run what lies between the stored revision and the newest, in the caller's transaction."""
    known = scripts()
    if stored is not None and stored not in {step.revision for step in known.walk_revisions()}:
        raise StoreError(
            f"this store was written by a newer Tidegate (its schema is {stored}, the newest known"
            f" here is {known.get_current_head()}); update Tidegate to use it"
        )
    config = _config()
    config.attributes["connection"] = connection
    with _one_at_a_time:
        command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    # A percent sign in the path would be read as the start of a variable.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
