"""Processes that are stopped for longer than they may be silent, and go on: too late to do harm."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from tests.projects import Folder
from tidegate.model.execution import Execution
from tidegate.model.instances import Instance
from tidegate.model.messages import InstanceState
from tidegate.ports.store import Store
from tidegate.wiring import open_parts, read_project

from .processes import Crew, Member, until
from .test_processes import complete, ids

FAR_AWAY = Instance(
    "aaaaaaaa-0000-4000-8000-000000000001",
    name="w",
    host="afar",
    process="afar:1:x",
    kinds=("table",),
)
"""It lives as long as nobody can say otherwise, and takes nothing that it is given."""
SHARED_GROUP = '"$@"; exit $?'
"""A worker that a shell starts has no process group to itself, and so is killed by nobody."""


@contextmanager
def looking_into(folder: Folder) -> Iterator[Store]:
    with open_parts(read_project(folder.path)) as parts:
        yield parts.store


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def by_term(store: Store, term: int) -> list[Execution]:
    return [one for one in store.executions.list() if one.term == term]


def test_a_leader_that_was_stopped_writes_nothing_after_its_term(shop: Folder, crew: Crew) -> None:
    with looking_into(shop) as store:
        store.instances.register([FAR_AWAY])
        first = crew.tidegate("manager", TIDEGATE_CRASHPOINT="leader.before_assign:1:stop")
        # Elected, and with an execution in hand that it is about to write.
        until(lambda: is_stopped(first.process.pid), "the leader stops")
        assert "leads, term 1" in first.said
        second = crew.tidegate("manager")
        second.wait_for("leads, term 2")
        until(lambda: by_term(store, 2), "the second one assigns")
        os.kill(first.process.pid, signal.SIGCONT)
        assert "term 1 is over" in first.wait_for("leads no longer")
        until(lambda: _again(store), "the second one leads on")
        assert by_term(store, 1) == []
        assert store.leadership.read().term == 2
    assert first.end() == 0, first.said
    assert second.end() == 0, second.said


def _again(store: Store) -> bool:
    """Keep the instance that takes nothing alive, until its second execution is there."""
    store.instances.beat({FAR_AWAY.id: InstanceState.IDLE}).result()
    return len(by_term(store, 2)) > 1


def pid_of(store: Store, name: str) -> int:
    """Find a worker's process by what it said when it registered."""
    return until(
        lambda: next((one.pid for one in store.instances.all() if one.name == name), None),
        f"{name} registers",
    )


def execution(store: Store, id: str) -> Execution:
    found = store.executions.get(id)
    assert found is not None
    return found


def lost(store: Store) -> Execution:
    """Wait until what runs is taken away from its worker."""
    (running,) = store.executions.open()
    until(lambda: not execution(store, running.id).state.open, "its work is taken away")
    return execution(store, running.id)


def committed(store: Store) -> int:
    """Count the blocks of the table."""
    offset = store.offsets.get("fact.orders")
    return offset.seq if offset else 0


HIRING = ("worker", "--no-lead", "--slots", "1", "--name")


def stopped_between_two_writes(shop: Folder, crew: Crew, store: Store) -> tuple[Member, int]:
    """Hire a worker that stops before its commit; give it and its process.

    One that a heartbeat has just let write holds up everybody, as docs/faults.md says of SQLite.
    That is another story: it is killed, and the next one is hired.
    """
    for name in ("a", "b", "c"):
        command = [sys.executable, "-m", "tidegate", "-C", str(shop.path), *HIRING, name]
        worker = crew.start(
            ["sh", "-c", SHARED_GROUP, "sh", *command],
            {"TIDEGATE_CRASHPOINT": "block.before_commit:1:stop"},
        )
        pid = pid_of(store, name)
        until(lambda pid=pid: is_stopped(pid), "it stops")  # type: ignore[misc]
        if can_be_written(shop):
            return worker, pid
        worker.kill()
    raise AssertionError("three workers in a row were stopped while they wrote")


def can_be_written(shop: Folder) -> bool:
    """Tell whether the store's lock is to be had within seconds, as from all who do not stop."""
    with (shop.path / ".tidegate/store.db.lock").open("ab") as lock:
        try:
            until(lambda: _is_taken(lock), "the lock is ours", 5)
        except TimeoutError:
            return False
    return True


def _is_taken(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_worker_that_was_stopped_commits_nothing_and_lets_go(shop: Folder, crew: Crew) -> None:
    """On a machine where nobody may kill it: stopped with its block in the table, unfinished."""
    crew.tidegate("manager").wait_for("leads, term 1")
    for other in ("fact.hourly", "fact.doubled"):
        assert shop.tidegate("pause", other).returncode == 0
    with looking_into(shop) as store:
        worker, pid = stopped_between_two_writes(shop, crew, store)
        overtaken = lost(store)
        assert "was not heard" in overtaken.comment
        held = shop.json("why", "fact.orders")["why"]
        assert held.startswith("held by"), held
        os.kill(pid, signal.SIGCONT)
        # It finds that its work is no longer its own, lets go of the topic, and gets it again.
        until(lambda: committed(store) == 1, "its block is committed by the next execution", 60)
        assert ids(shop, "fact.orders") == list(range(1, 21))
        assert execution(store, overtaken.id) == overtaken
    os.kill(pid, signal.SIGTERM)
    assert worker.process.wait(120) == 0, worker.said
    worker.wait_for_its_group()


@pytest.mark.long
def test_a_worker_that_hangs_on_the_leaders_machine_is_killed(shop: Folder, crew: Crew) -> None:
    """It leads a group of its own, so that it can be: two never write."""
    crew.tidegate("manager").wait_for("leads, term 1")
    hanging = crew.tidegate(*HIRING, "a", TIDEGATE_CRASHPOINT="step.after_write:1:stop")
    assert hanging.process.wait(240) == -signal.SIGKILL
    hanging.wait_for_its_group()
    worker = crew.tidegate(*HIRING, "b")
    until(lambda: complete(shop, 20), "another one builds them, each row once")
    assert worker.end() == 0, worker.said
