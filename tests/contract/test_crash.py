"""A process killed in the middle of a write leaves a store that others go on with."""

from __future__ import annotations

import subprocess
import sys

from .conftest import Open
from .scenes import TOPIC, claimed, committed, everything

VICTIM = """
import sys, threading
from sqlalchemy import insert, text
from tidegate.store import open_store
from tidegate.store.datasets import append
store = open_store(sys.argv[1], {})

def write(connection):
    if connection.dialect.name == "sqlite":
        # A small cache makes SQLite write into the file before the commit, so that there is
        # something to take back.
        connection.execute(text("PRAGMA cache_size = 5"))
    connection.execute(text("UPDATE offsets SET last_pos = 1, hostid = 'victim'"))
    entities = [{"_id": str(n), "text": "x" * 1000} for n in range(500)]
    append(connection, "fact.orders", entities, 1)
    print("in the middle", flush=True)
    threading.Event().wait()

store.writer.write(write)
"""


def test_a_write_that_was_killed_never_happened(url: str, opened: Open) -> None:
    store = opened(url)
    committed(store, "e1")
    before = everything(store)
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, url], stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "in the middle\n"
        victim.kill()
    assert everything(store) == before
    # The lock went with the process: others write at once, also those that open it anew.
    claimed(store, "e2")
    heir = opened(url)
    heir.blocks.unlock(TOPIC, 1)
    assert len(heir.datasets.entities(TOPIC)) == 4
