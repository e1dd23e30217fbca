"""Step 2: keeps an execution in the store before its work begins."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.assignment import new_execution
from tidegate.model.execution import Execution, Limits, Offset
from tidegate.ports import Runtime, Store


def assign(
    store: Store,
    runtime: Runtime,
    hostid: str,
    topic: str,
    *,
    kind: str = "table",
    limits: Limits | None = None,
) -> Execution:
    """Make an execution of a topic for this process; after one that failed or died, its retry."""
    execution = new_execution(
        runtime.uuid(),
        topic,
        runtime.now(),
        kind=kind,
        earlier=goes_on_from(store, topic, store.offsets.get(topic)),
        limits=limits,
        worker=hostid,
    )
    store.executions.assign(execution)
    return execution


def goes_on_from(store: Store, topic: str, offset: Offset | None) -> Sequence[Execution]:
    """Give the execution that the next one of a topic takes up, if it failed or died."""
    again = offset is not None and (offset.block is not None or offset.failures > 0)
    return store.executions.list(flow=topic, limit=1) if again else ()
