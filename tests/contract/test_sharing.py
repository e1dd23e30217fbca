"""Who has a lake whose log is not atomic: decided where instances and claims are written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from tidegate.errors import ClaimLost, WrongUse
from tidegate.model.execution import ExecutionState, new_execution
from tidegate.model.instances import FOR_ALL, Instance, InstanceStatus, Sharing, Writers
from tidegate.model.messages import InstanceState
from tidegate.ports.store import Store
from tidegate.store import SqlStore

from .conftest import Open
from .scenes import NOBODY, NOW, assigned, block, claimed, events, flow_of, offset, stored

FILE = Sharing(Writers.ONE_HOST, "/lake")
S3 = Sharing(Writers.ONE_PROCESS, "s3://bucket/lake")
ROUNDS = 8
A, B = "a:1:x", "b:2:y"


def worker(process: str) -> Instance:
    host, pid, _ = process.split(":")
    return Instance(process, name=host, host=host, pid=int(pid), process=process, kinds=("table",))


def status(store: Store, process: str) -> InstanceStatus:
    (found,) = store.instances.of(process)
    return found.status


def silence(store: SqlStore, process: str) -> None:
    """Let the store have heard nothing of a process for long."""
    store.writer.write(
        lambda c: c.execute(
            text("UPDATE etl_instances SET started_at = 1, reported_at = 1 WHERE process = :it"),
            {"it": process},
        )
    )


def unheld(store: Store) -> None:
    for topic, held in store.offsets.all().items():
        if held.hostid:
            store.blocks.unlock(topic, NOW)


def race(acts: list[Callable[[], object]]) -> list[WrongUse | None]:
    """Do all of it at the same moment; give who was refused."""
    gate = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> WrongUse | None:
        gate.wait()
        try:
            act()
        except WrongUse as refused:
            return refused
        return None

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


@pytest.mark.parametrize("lake", [FILE, S3], ids=["file", "s3"])
def test_of_workers_on_several_hosts_that_start_at_once_one_wins(
    url: str, opened: Open, lake: Sharing
) -> None:
    stores = [opened(url) for _ in range(3)]
    for round in range(ROUNDS):
        processes = [f"host{number}:{round + 1}:x" for number in range(3)]

        def register(number: int, processes: list[str] = processes) -> None:
            stores[number].instances.register([worker(processes[number])], lake)

        refused = race([lambda n=n: register(n) for n in range(3)])  # type: ignore[misc]
        assert refused.count(None) == 1
        (winner,) = [one for one in stores[0].instances.all() if one.lives]
        assert winner.process == processes[refused.index(None)]
        stores[0].instances.set_status(winner.process, InstanceStatus.UNLOADED)


def test_of_runs_by_hand_on_several_hosts_that_claim_at_once_one_wins(
    url: str, opened: Open
) -> None:
    stores = [opened(url) for _ in range(3)]
    for round in range(ROUNDS):
        made = [assigned(stores[n], f"r{round}-{n}", f"fact.t{n}") for n in range(3)]

        def claim(number: int, made: list = made) -> None:  # type: ignore[type-arg]
            process = f"host{number}:{number}:x"
            stores[number].blocks.claim(made[number], process, NOBODY, NOW, FILE)

        refused = race([lambda n=n: claim(n) for n in range(3)])  # type: ignore[misc]
        assert refused.count(None) == 1
        states = [stored(stores[0], one).state for one in made]
        assert states.count(ExecutionState.RUNNING) == 1
        assert states.count(ExecutionState.REJECTED) == 2
        unheld(stores[0])


def test_of_a_worker_and_a_run_by_hand_one_wins(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(2)]
    for round in range(ROUNDS):
        made, hired = assigned(stores[0], f"r{round}"), worker(f"b:{round + 1}:x")
        refused = race(
            [
                lambda made=made: stores[0].blocks.claim(made, A, NOBODY, NOW, FILE),  # type: ignore[misc]
                lambda hired=hired: stores[1].instances.register([hired], FILE),  # type: ignore[misc]
            ]
        )
        assert refused.count(None) == 1
        unheld(stores[0])
        stores[0].instances.set_status(hired.process, InstanceStatus.UNLOADED)


def test_workers_of_one_host_share_a_lake_on_it(store: Store) -> None:
    store.instances.register([worker(A)], FILE)
    store.instances.register([worker("a:2:z")], FILE)
    with pytest.raises(WrongUse, match="a worker lives on a, and /lake is a path of this machine"):
        store.instances.register([worker(B)], FILE)
    assert store.instances.of(B) == []


def test_where_one_commit_wins_all_may_write(store: Store) -> None:
    store.instances.register([worker(A)], FOR_ALL)
    store.instances.register([worker(B)], FOR_ALL)
    store.blocks.claim(assigned(store, "e1"), "c:1:x", NOBODY, NOW, FOR_ALL)


@pytest.mark.parametrize("leaving", [InstanceStatus.CLOSING, None], ids=["closing", "disabled"])
def test_one_that_gets_no_more_work_may_still_write(
    store: Store, leaving: InstanceStatus | None
) -> None:
    store.instances.register([worker(A)], FILE)
    if leaving is None:
        store.instances.disable([A], disabled=True)
    else:
        store.instances.set_status(A, leaving)
    with pytest.raises(WrongUse):
        store.instances.register([worker(B)], FILE)


def test_a_run_that_is_refused_is_told_once_it_has_looked_who_is_dead(store: Store) -> None:
    store.instances.register([worker(A)], FILE)
    made = assigned(store, "e1")
    with pytest.raises(WrongUse, match="a worker lives on a"):
        store.blocks.claim(made, B, None, NOW, FILE)
    assert stored(store, made).state is ExecutionState.ASSIGNED
    with pytest.raises(WrongUse, match="a worker lives on a"):
        store.blocks.claim(made, B, NOBODY, NOW, FILE)
    assert stored(store, made).comment.startswith("rejected: a worker lives on a")


def test_a_process_that_has_ended_here_keeps_nobody_out(store: Store) -> None:
    store.instances.register([worker("a:9:z")], S3)
    claimed(store, "e1", host="a:9:z")
    with pytest.raises(WrongUse, match="one worker process at a time"):
        store.instances.register([worker(A)], S3)
    store.instances.register([worker(A)], S3, frozenset({"a:9:z"}))
    assert (status(store, A), status(store, "a:9:z")) == (InstanceStatus.ALIVE, InstanceStatus.DEAD)


class TestSilence:
    """A worker of another host that is not heard, dead or cut off: from here nobody can tell."""

    def test_it_keeps_nobody_out_for_ever(self, store: SqlStore) -> None:
        store.instances.register([worker(A)], FILE)
        silence(store, A)
        store.instances.register([worker(B)], FILE)
        assert (status(store, A), status(store, B)) == (InstanceStatus.DEAD, InstanceStatus.ALIVE)

    def test_a_topic_that_it_holds_does(self, store: SqlStore) -> None:
        store.instances.register([worker(A)], FILE)
        claimed(store, "e1", host=A)
        silence(store, A)
        with pytest.raises(WrongUse, match=r"held by a:1:x, .* offsets unlock fact\.orders"):
            store.instances.register([worker(B)], FILE)
        assert status(store, A) is InstanceStatus.ALIVE
        store.blocks.unlock("fact.orders", NOW)
        store.instances.register([worker(B)], FILE)

    def test_it_does_not_come_back_to_a_lake_that_others_have(self, store: SqlStore) -> None:
        store.instances.register([worker(A)], FILE)
        late = new_execution("e-1", flow_of(), NOW, worker=A)
        store.executions.assign(late)
        silence(store, A)
        store.instances.register([worker(B)], FILE)
        store.instances.beat({A: InstanceState.IDLE}).result()
        store.instances.set_status(A, InstanceStatus.CLOSING)
        assert status(store, A) is InstanceStatus.DEAD
        with pytest.raises(ClaimLost, match="silent for too long"):
            store.blocks.claim(late, A, NOBODY, NOW, FILE)
        with pytest.raises(WrongUse, match="a worker lives on b"):
            store.instances.register([worker(A)], FILE)

    def test_it_comes_back_by_registering_where_nobody_took_the_lake(self, store: SqlStore) -> None:
        store.instances.register([worker(A)], FILE)
        term = store.leadership.take("leader", 60_000)
        assert term is not None
        silence(store, A)
        store.executions.unload([A], NOBODY, "silent", term)
        store.instances.register([worker(A)], FILE)
        (found,) = store.instances.of(A)
        assert found.status is InstanceStatus.ALIVE
        assert found.heard_at() > NOW

    def test_a_run_by_hand_passes_it_over_too(self, store: SqlStore) -> None:
        store.instances.register([worker(A)], FILE)
        silence(store, A)
        store.blocks.claim(assigned(store, "e1"), B, NOBODY, NOW, FILE)
        assert status(store, A) is InstanceStatus.DEAD
        with pytest.raises(WrongUse, match="is held by b:2:y"):
            store.instances.register([worker(A)], FILE)


class TestLettingGo:
    def test_what_the_dead_held_is_free_and_their_executions_are_lost(self, store: Store) -> None:
        gone = claimed(store, "e1", host=A)
        store.blocks.declare(gone, block(), NOW)
        claimed(store, "e2", "fact.other", host=B)
        assert set(store.blocks.holders()) == {A, B}
        store.blocks.let_go({A}, NOW)
        assert set(store.blocks.holders()) == {B}
        assert stored(store, gone).comment == f"lost: {A} died"
        assert (offset(store).hostid, offset(store).block) == ("", block())
        assert events(store) == ["task-started", "task-failed"]

    def test_what_a_worker_does_in_its_own_name_is_lost_with_it(self, store: Store) -> None:
        store.instances.register([replace(worker(A), id="i-1")])
        term = store.leadership.take("leader", 60_000)
        assert term is not None
        tidying = new_execution("e-1", flow_of(), NOW, worker=A)
        store.executions.assign(tidying)
        store.blocks.claim(tidying, A, NOBODY, NOW)
        store.executions.unload(["i-1"], frozenset({A}), "silent", term)
        assert stored(store, tidying).state is ExecutionState.LOST
        assert offset(store).hostid == ""
