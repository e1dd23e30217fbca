"""Executions, blocks and commits in the states that the contract talks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from tidegate.model.execution import Counts, Execution, ExecutionState, Outcome
from tidegate.model.flow import Flow, Kind, Operation
from tidegate.model.messages import Phase
from tidegate.model.position import START, Block, Offset, OffsetState, Position
from tidegate.model.records import Measures, Record
from tidegate.ports.store import Commit, Store
from tidegate.store.definitions import ReadDefinition
from tidegate.tables.definition import Processor, TableDefinition, TopicName

NOW = 1_700_000_000_000
TOPIC = "fact.orders"
PIPE = "crm-customers"
"""A flow whose id is no topic: whoever took it for one would fail."""
NOBODY: frozenset[str] = frozenset()
STREAMS = (
    Counts(Phase.DATA_EXTRACT, "stage.orders", 10, 10),
    Counts(Phase.STRUCTURE_TRANSFORM, "orders", 10, 9),
    Counts(Phase.DATA_TRANSFORM, "orders", 9, 9),
    Counts(Phase.DATA_LOAD, TOPIC, 9, 9),
)


def definition(topic: str = TOPIC, comment: str = "") -> TableDefinition:
    return TableDefinition(
        topic,
        Processor.STEP,
        depends_on=("stage.orders", "stage.customers"),
        transforms=("orders",),
        views={"z_first": "SELECT 1", "a_second": "SELECT 2"},
        vars={"limit": 3},
        comment=comment,
    )


@dataclass(frozen=True)
class PipeDefinition:
    """A flow of another kind than tables, with no more than the store asks of it."""

    name: str = PIPE
    target: str = "stage.customers"
    comment: str = ""
    rebuilds: str = ""
    processor: ClassVar[str] = "pipe"

    @property
    def flow(self) -> Flow:
        return Flow(self.name, Kind.PIPE, self.target)

    def source(self) -> Mapping[str, Any]:
        return {"type": "notes"}

    def sink(self) -> Mapping[str, Any]:
        return {"type": "table", "table": self.target}

    def may_finish(self, block: Block[Any], declared: PipeDefinition) -> bool:
        return block.seq > 0 and self.target == declared.target

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)


KINDS: Mapping[Kind, ReadDefinition] = {
    Kind.TABLE: TableDefinition.from_dict,
    Kind.PIPE: lambda values: PipeDefinition(**values),
}
"""How the definitions of each kind are read back."""


def flow_of(id: str = TOPIC) -> Flow:
    """Give the flow of a table's topic."""
    return Flow(id, Kind.TABLE, TopicName.parse(id).table)


def pipe(id: str = PIPE, lane: str = "stage.customers") -> Flow:
    return Flow(id, Kind.PIPE, lane)


def execution(
    id: str,
    flow: str | Flow = TOPIC,
    at: int = NOW,
    operation: Operation = Operation.BUILD,
) -> Execution:
    of = flow if isinstance(flow, Flow) else flow_of(flow)
    return Execution(
        id,
        of.kind,
        of.id,
        of.id,
        ExecutionState.ASSIGNED,
        lane=of.lane,
        operation=operation,
        assigned_at=at,
    )


def assigned(
    store: Store,
    id: str,
    topic: str | Flow = TOPIC,
    at: int = NOW,
    operation: Operation = Operation.BUILD,
) -> Execution:
    made = execution(id, topic, at, operation)
    store.executions.assign(made)
    return made


def claimed(
    store: Store,
    id: str,
    topic: str | Flow = TOPIC,
    host: str = "host-1",
    dead: frozenset[str] = NOBODY,
    at: int = NOW,
    operation: Operation = Operation.BUILD,
) -> Execution:
    made = assigned(store, id, topic, at, operation)
    store.blocks.claim(made, host, dead, at)
    return made


def block(
    seq: int = 1, last: Position = START, next: Position | None = None, processor: str = "Step"
) -> Block:
    return Block(
        last=last,
        next=next or Position(NOW + seq, seq),
        rows=10,
        seq=seq,
        full=True,
        complete_to=NOW + seq,
        definition_version=3,
        versions={"stage.orders": 7, "stage.customers": 4},
        processor=processor,
    )


def marked(seq: int = 1, last: Any = START, next: Mapping[str, Any] | None = None) -> Block[Any]:
    """Give a block of a flow that counts in another way than (pos, id)."""
    return Block(
        last=last,
        next=next or {"0": 12, "1": 7},
        rows=10,
        seq=seq,
        full=False,
        complete_to=NOW + seq,
        definition_version=1,
        processor="pump",
    )


def kept(of: Block[Any]) -> Block[Any]:
    """Give a block as the journal has it: what it was made by stands in its flow's row alone."""
    return replace(of, processor="")


def declared(store: Store, id: str, of: Block[Any] | None = None, **claim: Any) -> Execution:
    made = claimed(store, id, **claim)
    store.blocks.declare(made, of or block(), NOW)
    return made


def commit_of(
    made: Execution,
    of: Block[Any] | None = None,
    at: int = NOW,
    measures: Measures | None = None,
    records: Sequence[Record] = (),
) -> Commit:
    """Commit a block as an execution does that knows its flow's row from the declaration."""
    done = of or block()
    known: Offset[Any] = Offset(
        made.topic,
        done.last,
        made.lane,
        processor=done.processor,
        state=OffsetState.RUNNING,
        hostid="host-1",
        execution_id=made.id,
        claimed_at=NOW,
        block=done,
    )
    measured = () if measures is None else (measures,)
    outcome = Outcome(9, "a note", version=5, streams=STREAMS, records=(*measured, *records))
    return Commit(made, known, done, outcome, at)


def moved(commit: Commit) -> Offset[Any]:
    """Give the row that a commit is to leave: moved on, and held by nobody."""
    return free(commit.moved())


def committed(store: Store, id: str, of: Block[Any] | None = None, **claim: Any) -> Execution:
    made = declared(store, id, of, **claim)
    store.blocks.commit(commit_of(made, of))
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
        store.definitions.current(),
    )


def free(held: Offset[Any]) -> Offset[Any]:
    """Give the same row with its mutex free."""
    return replace(held, hostid="", execution_id=None, claimed_at=None)
