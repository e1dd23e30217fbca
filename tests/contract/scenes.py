"""Executions, blocks and commits in the states that the contract talks about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidegate.model.execution import (
    Block,
    Execution,
    ExecutionState,
    Measures,
    Offset,
    OffsetState,
    Outcome,
)
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import START, Position
from tidegate.ports import Commit, Store

NOW = 1_700_000_000_000
TOPIC = "fact.orders"
NOBODY: frozenset[str] = frozenset()


def definition(topic: str = TOPIC, comment: str = "") -> Definition:
    return Definition(
        topic,
        Processor.STEP,
        depends_on=("stage.orders", "stage.customers"),
        transforms=("orders",),
        views={"z_first": "SELECT 1", "a_second": "SELECT 2"},
        vars={"limit": 3},
        comment=comment,
    )


def execution(id: str, topic: str = TOPIC, at: int = NOW) -> Execution:
    return Execution(id, "table", topic, topic, ExecutionState.ASSIGNED, assigned_at=at)


def assigned(store: Store, id: str, topic: str = TOPIC, at: int = NOW) -> Execution:
    made = execution(id, topic, at)
    store.executions.assign(made)
    return made


def claimed(
    store: Store,
    id: str,
    topic: str = TOPIC,
    host: str = "host-1",
    dead: frozenset[str] = NOBODY,
    at: int = NOW,
) -> Execution:
    made = assigned(store, id, topic, at)
    store.executions.claim(made, host, dead, at)
    return made


def block(seq: int = 1, last: Position = START, next: Position | None = None) -> Block:
    return Block(
        last=last,
        next=next or Position(NOW + seq, seq),
        rows=10,
        seq=seq,
        full=True,
        complete_to=NOW + seq,
        definition_version=3,
        versions={"stage.orders": 7, "stage.customers": 4},
    )


def declared(store: Store, id: str, of: Block | None = None, **claim: Any) -> Execution:
    made = claimed(store, id, **claim)
    store.executions.declare(made, of or block(), "Step", NOW)
    return made


def commit_of(
    made: Execution, of: Block | None = None, at: int = NOW, measures: Measures | None = None
) -> Commit:
    done = of or block()
    offset = Offset(
        made.topic,
        done.next,
        seq=done.seq,
        rows=done.rows,
        run=at,
        processor="Step",
        state=OffsetState.DONE,
        complete_to=done.complete_to,
        full=done.full,
        versions=done.versions,
        definition_version=done.definition_version,
    )
    return Commit(made, offset, done, Outcome(9, 5, measures, "a note"), at, definition())


def committed(store: Store, id: str, of: Block | None = None, **claim: Any) -> Execution:
    made = declared(store, id, of, **claim)
    store.executions.commit(commit_of(made, of))
    return made


def offset(store: Store, topic: str = TOPIC) -> Offset:
    found = store.offsets.get(topic)
    assert found is not None
    return found


def stored(store: Store, made: Execution) -> Execution:
    found = store.executions.get(made.id)
    assert found is not None
    return found


def events(store: Store, flow: str = TOPIC) -> list[str]:
    return [entity["event_type"] for entity in store.datasets.entities(flow)]


def last_event(store: Store, flow: str = TOPIC) -> Mapping[str, Any]:
    return store.datasets.entities(flow)[-1]


def everything(store: Store) -> tuple[Any, ...]:
    """All that a store says, to see that nothing was written."""
    flows = store.datasets.flows()
    return (
        store.offsets.all(),
        store.executions.list(),
        {flow: store.datasets.entities(flow) for flow in flows},
        store.journal.etl_log(),
        {topic: store.journal.blocks(topic) for topic in store.offsets.all()},
        store.lineages.current(),
    )


def free(held: Offset) -> Offset:
    """Give the same row with its mutex free."""
    return replace(held, hostid="", execution_id=None, claimed_at=None)
