"""Step 2: keeps an execution in the store before its work begins."""

from __future__ import annotations

from tidegate.model.execution import Execution, ExecutionState, Limits
from tidegate.ports import Runtime, Store


def assign(
    store: Store, runtime: Runtime, topic: str, *, kind: str = "table", limits: Limits | None = None
) -> Execution:
    """Make an execution of a topic; after one that failed or died, as its retry."""
    offset = store.offsets.get(topic)
    again = offset is not None and (offset.block is not None or offset.failures > 0)
    earlier = store.executions.list(flow=topic, limit=1) if again else []
    execution = Execution(
        id=runtime.uuid(),
        flow_kind=kind,
        flow_id=topic,
        topic=topic,
        state=ExecutionState.ASSIGNED,
        attempt=earlier[0].attempt + 1 if earlier else 1,
        retry_of=earlier[0].id if earlier else None,
        assigned_at=runtime.now(),
        configuration={"kind": kind, "id": topic, **_limits(limits)},
    )
    store.executions.assign(execution)
    return execution


def _limits(limits: Limits | None) -> dict[str, object]:
    if limits is None:
        return {}
    return {
        "limits": {
            "as_of": limits.as_of,
            "frontier": [limits.frontier.pos, limits.frontier.id],
            "bound": limits.bound,
            "retry": limits.retry,
            "complete_to": limits.complete_to,
        }
    }
