"""A store of the version before flows had kinds is upgraded in place, with work open in it.

`store_0007.json` holds the rows as that version left them: fact.orders in the middle of a block,
with rows that wait; fact.hours about to be published from a table that was built beside;
mart.segments paused and stale; an execution that waits for a foreign worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Boolean, Connection, MetaData, Table, insert

from tests.contract.conftest import Open
from tests.contract.scenes import NOW, flow_of
from tidegate.model.entities import FailedState
from tidegate.model.execution import (
    Execution,
    ExecutionState,
    Outcome,
    new_execution,
)
from tidegate.model.flow import Kind, Operation
from tidegate.model.position import OffsetState, Position
from tidegate.model.records import TookPlace
from tidegate.ports.store import Commit, Store
from tidegate.store.backends import backend_for
from tidegate.store.migrations import steps
from tidegate.tables.definition import as_table

BEFORE = "0007"
ROWS = json.loads((Path(__file__).parent / "store_0007.json").read_text(encoding="utf-8"))
LATER = 2 * NOW
DEAD = frozenset({"host:27044:cf13ce4d", "host:27921:9740d265"})
"""The processes that died over the open work."""
SHADOW = "fact.hours__rebuild_080cc504c63d"
LAST, NEXT = Position(1795063752964, 11), Position(1795063800226, 47)


@pytest.fixture
def store(blank_url: str, opened: Open) -> Store:
    """Make the store as it was, then open it with this version."""
    backend = backend_for(blank_url, None)
    with backend.alone(), backend.engine.connect() as connection:
        connection.exec_driver_sql(backend.begin)
        _fill(connection)
        backend.commit(connection)
    backend.engine.dispose()
    return opened(blank_url)


def _fill(connection: Connection) -> None:
    config = steps._config()
    config.attributes["connection"] = connection
    command.upgrade(config, BEFORE)
    tables = MetaData()
    tables.reflect(connection)
    for table in tables.sorted_tables:
        rows = [_of_type(table, row) for row in ROWS.get(table.name, ())]
        if rows:
            connection.execute(insert(table), rows)


def _of_type(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """SQLite, from which the rows come, keeps a boolean as a number."""
    return {
        name: bool(value)
        if isinstance(table.c[name].type, Boolean) and value is not None
        else value
        for name, value in row.items()
    }


def claimed(store: Store, topic: str, operation: Operation = Operation.BUILD) -> Execution:
    made = new_execution("next", flow_of(topic), LATER, operation=operation, worker="me")
    store.executions.assign(made)
    return store.blocks.claim(made, "me", DEAD, LATER).execution


def test_definitions_are_those_of_tables(store: Store) -> None:
    current = store.definitions.current()
    assert set(current) == {"stage.customers", "fact.orders", "fact.hours", "mart.segments"}
    assert store.definitions.current(Kind.TABLE) == current
    assert as_table(current["fact.orders"].definition).checks == {"known": "id % 6 <> 1"}
    assert [one.definition.flow.lane for one in store.definitions.history("fact.hours")] == [
        "fact.hours"
    ]


def test_the_open_block_is_the_same_and_can_be_committed(store: Store) -> None:
    before = store.offsets.get("fact.orders")
    assert before is not None
    assert (before.last, before.seq, before.lane) == (LAST, 2, "fact.orders")
    block = before.block
    assert block is not None
    assert (block.next, block.seq, block.rows, block.last) == (NEXT, 3, 36, LAST)
    execution = claimed(store, "fact.orders")
    commit = Commit(execution, before, block, Outcome(30), LATER)
    ended = store.blocks.commit(commit)
    assert (ended.execution.state, ended.offset.last) == (ExecutionState.FINISHED, NEXT)
    died = store.executions.list(flow="fact.orders")[1]
    assert (died.state, died.lane) == (ExecutionState.LOST, "fact.orders")
    assert [row.block.seq for row in store.journal.blocks("fact.orders")] == [1, 2, 3]


def test_nothing_is_away_and_nothing_waits(store: Store) -> None:
    known = store.offsets.all()
    assert {(one.away_since, one.wait) for one in known.values()} == {(None, 0)}
    execution = claimed(store, "fact.orders")
    store.blocks.fail(execution, "disk full", "", False, LATER, wait=7, away=True)
    away = store.offsets.get("fact.orders")
    assert away is not None
    assert (away.away_since, away.wait, away.block is not None) == (LATER, 7, True)


def test_rows_that_waited_still_do(store: Store) -> None:
    assert store.failures.counts() == {"fact.orders": {FailedState.WAITING: 2}}
    assert [row.position.id for row in store.failures.waiting("fact.orders", 10)] == [1, 7]


def test_an_open_rebuild_can_be_published(store: Store) -> None:
    shadow = store.rebuilds.of("fact.hours")
    assert shadow is not None
    assert (shadow.topic, as_table(shadow.definition).table) == (SHADOW, SHADOW)
    before = store.offsets.get("fact.hours")
    assert before is not None
    block = before.block
    assert block is not None
    execution = claimed(store, "fact.hours", Operation.PUBLISH)
    outcome = Outcome(1, records=(TookPlace(SHADOW),))
    store.blocks.commit(Commit(execution, before, block, outcome, LATER))
    assert store.rebuilds.of("fact.hours") is None
    assert store.rebuilds.abandoned() == [SHADOW]


def test_what_executions_did_is_their_operation(store: Store) -> None:
    done = {(one.flow_kind, one.operation) for one in store.executions.list()}
    assert done == {
        (Kind.TABLE, Operation.BUILD),
        (Kind.TABLE, Operation.PUBLISH),
        (Kind.EXTERNAL, Operation.BUILD),
    }
    builds = [one.flow_id for one in store.executions.list() if one.operation is Operation.BUILD]
    assert SHADOW in builds
    assert all(one.lane for one in store.executions.list())


def test_what_waits_for_a_foreign_worker_still_does(store: Store) -> None:
    (waiting,) = [one for one in store.executions.open() if one.flow_kind is Kind.EXTERNAL]
    assert (waiting.tags, waiting.etl_worker, waiting.configuration) == (("gpu",), "", {"x": 1})
    assert waiting.lane == waiting.id


def test_what_people_wanted_still_holds(store: Store) -> None:
    control = store.controls.all()["mart.segments"]
    assert (control.paused_by, control.paused_why) == ("ann", "month end")
    stale = store.offsets.get("mart.segments")
    assert stale is not None
    assert stale.state is OffsetState.DONE
    assert stale.stale.startswith("stale: fact.orders was rebuilt at")
