"""Step 2, assign: which idle instance gets which due topic, and the execution it is told of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from tidegate.model.execution import Execution, ExecutionState, Limits
from tidegate.model.instance import EXTERNAL, TABLE, Instance
from tidegate.model.messages import InstanceState
from tidegate.model.position import Position

_Kinship = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Host, kinds and tags of an instance: all that a choice looks at."""


@dataclass(frozen=True)
class Due:
    """Something that could run now, and what it asks of an instance."""

    flow: str
    kind: str
    lane: str
    """What it writes to: one execution at a time in each lane."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assigned:
    """A due flow, and the instance that is to run it."""

    due: Due
    instance: Instance


def assign(
    due: Iterable[Due],
    instances: Collection[Instance],
    busy: Collection[str],
    lanes: Collection[str],
    room: int | None,
) -> list[Assigned]:
    """Give each due flow an instance that fits, the least loaded host first; a pure choice.

    `busy` are the instances that hold an open execution, `lanes` the ones that are taken, `room`
    how many more executions the project allows (None: as many as there are instances).
    """
    pools = _pools(i for i in instances if _is_free(i, busy))
    load = Counter(i.host for i in instances if i.id in busy)
    taken = set(lanes)
    chosen: list[Assigned] = []
    for flow in due:
        if not pools or (room is not None and len(chosen) >= room):
            break
        fitting = [pool for pool in pools.values() if _fits(pool[-1], flow)]
        if flow.lane in taken or not fitting:
            continue
        pool = min(fitting, key=lambda p: (load[p[-1].host], p[-1].host, p[-1].id))
        instance = pool.pop()
        if not pool:
            del pools[_kinship(instance)]
        load[instance.host] += 1
        taken.add(flow.lane)
        chosen.append(Assigned(flow, instance))
    return chosen


def _is_free(instance: Instance, busy: Collection[str]) -> bool:
    return instance.works and instance.state is InstanceState.IDLE and instance.id not in busy


def _pools(free: Iterable[Instance]) -> dict[_Kinship, list[Instance]]:
    """Put together those that any flow fits alike, so that each flow looks at few of them."""
    pools: dict[_Kinship, list[Instance]] = {}
    # The first of each by name is its last: there it is taken from.
    for instance in sorted(free, key=lambda i: i.id, reverse=True):
        pools.setdefault(_kinship(instance), []).append(instance)
    return pools


def _kinship(instance: Instance) -> _Kinship:
    return instance.host, instance.kinds, instance.tags


def _fits(instance: Instance, due: Due) -> bool:
    return due.kind in instance.kinds and set(due.tags) <= set(instance.tags)


def new_execution(
    id: str,
    topic: str,
    at: int,
    *,
    kind: str = TABLE,
    earlier: Sequence[Execution] = (),
    limits: Limits | None,
    worker: str = "",
    term: int | None = None,
) -> Execution:
    """Make the execution of a table; `earlier` is the one that it goes on from, if there is one."""
    return Execution(
        id=id,
        flow_kind=kind,
        flow_id=topic,
        topic=topic,
        state=ExecutionState.ASSIGNED,
        attempt=earlier[0].attempt + 1 if earlier else 1,
        retry_of=earlier[0].id if earlier else None,
        etl_worker=worker,
        assigned_at=at,
        configuration={"kind": kind, "id": topic, **_with_limits(limits)},
        term=term,
    )


def queued(id: str, configuration: Mapping[str, Any], tags: Sequence[str], at: int) -> Execution:
    """Make an execution for a foreign worker, which waits until an instance is free for it."""
    return Execution(
        id=id,
        flow_kind=EXTERNAL,
        flow_id=EXTERNAL,
        topic="",
        state=ExecutionState.ASSIGNED,
        assigned_at=at,
        configuration=configuration,
        tags=tuple(tags),
    )


def queued_again(ended: Execution, at: int) -> Execution:
    """Make the successor of a foreign execution that was lost or refused.

    Its id follows from the one before it: whoever finds the loss makes the same one.
    """
    return replace(
        ended,
        id=_next_id(ended.id),
        state=ExecutionState.ASSIGNED,
        attempt=ended.attempt + 1,
        retry_of=ended.id,
        etl_worker="",
        assigned_at=at,
        accepted_at=None,
        started_at=None,
        finished_at=None,
        comment="",
        term=None,
    )


def _next_id(id: str) -> str:
    digits = sha256(id.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def _with_limits(limits: Limits | None) -> dict[str, Any]:
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


def limits_of(configuration: Mapping[str, Any]) -> Limits | None:
    """Read what `new_execution` wrote; None when the execution is to finish an open block."""
    given = configuration.get("limits")
    if given is None:
        return None
    return Limits(
        as_of=given["as_of"],
        frontier=Position(*given["frontier"]),
        bound=given["bound"],
        complete_to=given["complete_to"],
        retry=given["retry"],
    )
