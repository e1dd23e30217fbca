"""What must hold while it runs, and what when it has come to rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine, create_engine, text

from tests.soak.project import STEPS
from tidegate.errors import StoreError
from tidegate.model.execution import ExecutionState
from tidegate.model.position import Position
from tidegate.ports.store import Store
from tidegate.wiring import Parts

_EVENTS = text(
    "SELECT flow_id, event_type, count(*) FROM dataset_entities"
    " WHERE event_type IN ('task-started', 'task-completed', 'task-failed')"
    " GROUP BY flow_id, event_type"
)


@dataclass
class Watch:
    """Looks at the positions again and again: never back, and a declared end stays."""

    store: Store
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    through: int = 0
    """Rows that are in the last table of the chain."""
    _reached: dict[str, Position] = field(default_factory=dict)
    _declared: dict[tuple[str, int], Position] = field(default_factory=dict)

    def turn(self) -> None:
        try:
            offsets = self.store.offsets.all()
        except StoreError as error:
            self.wrong.append(f"the store could not be read: {error}")
            return
        self.looks += 1
        for topic, offset in offsets.items():
            if offset.last < self._reached.get(topic, offset.last):
                self.wrong.append(f"{topic} went back to {offset.last}")
            self._reached[topic] = offset.last
            if offset.block is not None:
                key = (topic, offset.block.seq)
                if self._declared.setdefault(key, offset.block.next) != offset.block.next:
                    self.wrong.append(f"{topic} declared its block {key[1]} twice")
        self.through = min(max(0, self._reached[t].id) if t in self._reached else 0 for t in STEPS)


def is_at_rest(parts: Parts, newest: Position, landed: int) -> bool:
    """Tell whether all that was landed has come through, and nobody is at work, nor will be."""
    offsets = parts.store.offsets.all()
    arrived = all(topic in offsets and offsets[topic].last == newest for topic in STEPS)
    if not arrived or not landed or parts.store.executions.open():
        return False
    # A Reload that ended last may have begun before the last block of what it reads.
    return not any(verdict.due for verdict in parts.planner().plan(eager=True).verdicts.values())


def faults(store: Store) -> list[str]:
    """Say which executions have no end or two, and who still holds a topic."""
    found = [
        f"execution {one.id} of {one.topic} is {one.state.value}, finished at {one.finished_at}"
        for one in store.executions.list()
        if one.state.open or one.finished_at is None
    ]
    for topic, offset in store.offsets.all().items():
        if offset.hostid or offset.block is not None:
            found.append(f"{topic} is held by {offset.hostid!r}, block {offset.block}")
    if store.leadership.read().holder:
        found.append(f"{store.leadership.read().holder} still leads")
    return found


def ends_told(url: str) -> list[str]:
    """Hold the log of each flow against itself: as many ends as starts."""
    engine: Engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    counts: dict[str, dict[str, int]] = {}
    with engine.connect() as connection:
        for flow, event, count in connection.execute(_EVENTS):
            counts.setdefault(flow, {})[event] = count
    engine.dispose()
    return [
        f"the log of {flow} has {told.get('task-started', 0)} starts and {ends} ends"
        for flow, told in counts.items()
        if (ends := told.get("task-completed", 0) + told.get("task-failed", 0))
        != told.get("task-started", 0)
    ]


def summary(store: Store) -> str:
    executions = store.executions.list()
    states = {state: sum(one.state is state for one in executions) for state in ExecutionState}
    told = ", ".join(f"{count:,} {state.value}" for state, count in states.items() if count)
    return f"{len(executions):,} executions: {told}; term {store.leadership.read().term}"
