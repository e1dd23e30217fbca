"""Step 2: keeps an execution in the store before its work begins."""

from __future__ import annotations

from tidegate.model.assignment import new_execution
from tidegate.model.execution import Execution, Limits
from tidegate.ports import Runtime, Store


def assign(
    store: Store, runtime: Runtime, topic: str, *, kind: str = "table", limits: Limits | None = None
) -> Execution:
    """Make an execution of a topic; after one that failed or died, as its retry."""
    offset = store.offsets.get(topic)
    again = offset is not None and (offset.block is not None or offset.failures > 0)
    earlier = store.executions.list(flow=topic, limit=1) if again else []
    execution = new_execution(
        runtime.uuid(), topic, runtime.now(), kind=kind, earlier=earlier, limits=limits
    )
    store.executions.assign(execution)
    return execution
