"""Instances: who can run an execution, who counts as dead, who leads, and who gets what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.model.duration import DAY, SECOND
from tidegate.model.flow import Flow, Kind
from tidegate.model.messages import InstanceState


class InstanceStatus(StrEnum):
    """Where an instance stands in its life, and who moves it on."""

    ALIVE = "alive"  # by its registration or a heartbeat; the leader finds it overdue
    CLOSING = "closing"  # by itself, to get no more work; it leaves when its work is done
    DEAD = "dead"  # by the leader; the leader takes its work away
    UNLOADED = "unloaded"  # by the leader, or by itself when it leaves; a heartbeat revives it


@dataclass(frozen=True)
class Instance:
    """A row of `etl_instances`: one slot of a worker process, ours or a foreign one."""

    id: str
    status: InstanceStatus = InstanceStatus.ALIVE
    state: InstanceState = InstanceState.IDLE
    name: str = ""
    host: str = ""
    pid: int | None = None
    process: str = ""
    """Names the worker process that hosts it; as a holder of mutexes, too."""
    kinds: tuple[str, ...] = (Kind.EXTERNAL,)
    tags: tuple[str, ...] = ()
    disabled: bool = False
    """An operator wants it to get no work; it lives on."""
    reported_at: int | None = None
    started_at: int = 0
    status_updated_at: int = 0

    @property
    def lives(self) -> bool:
        return self.status in (InstanceStatus.ALIVE, InstanceStatus.CLOSING)

    @property
    def works(self) -> bool:
        """Tell whether it may be given work at all."""
        return self.status is InstanceStatus.ALIVE and not self.disabled

    @property
    def ours(self) -> bool:
        """Tell whether it registered itself, so that its outcomes are in the store."""
        return bool(self.process)

    def heard_at(self) -> int:
        return max(self.reported_at or 0, self.started_at)


def overdue(
    instances: Iterable[Instance], now: int, attentive_since: int, dead_after: int
) -> list[Instance]:
    """Give those that were not heard for too long.

    A leader can blame silence on nobody but itself for the time before it listened: its election,
    or the end of a gap in its own loop.
    """
    return [
        instance
        for instance in instances
        if instance.lives and now - max(instance.heard_at(), attentive_since) > dead_after
    ]


def clash(lake: str, me: Instance, others: Iterable[Instance]) -> str | None:
    """Say why a worker process may not join those that live; None when it may.

    Two processes may commit to one Delta table only where the storage lets one of them win. On
    `file:` a lock on this machine sees to that, on plain S3 nothing does.
    """
    living = [one for one in others if one.works and one.ours and one.process != me.process]
    if "://" not in lake:
        elsewhere = sorted({one.host for one in living} - {me.host})
        if elsewhere:
            return (
                f"a worker lives on {elsewhere[0]}, and {lake} is a path of this machine: several"
                " hosts cannot write safely to one lake on `file:`; put it on storage with an"
                " atomic log (HDFS, ABFS, GCS), or run all workers on one host"
            )
    elif lake.startswith(("s3://", "s3a://")) and living:
        return (
            f"a worker lives on {living[0].host} as process {living[0].process}: on plain S3 one"
            " worker process at a time may write; give that one more slots instead"
        )
    return None


@dataclass(frozen=True)
class Lease:
    """The one row of `leadership`, read together with the store's clock."""

    term: int
    holder: str
    """Empty before the first election and after an abdication."""
    expires_at: int
    elected_at: int
    now: int
    """The store's time at the reading; no other clock is compared with `expires_at`."""

    def established(self, length: int) -> bool:
        """Tell whether somebody leads.

        A lease that ends further ahead than one length was written under another clock.
        """
        return bool(self.holder) and self.now < self.expires_at <= self.now + length


@dataclass(frozen=True)
class Pace:
    """All times in milliseconds."""

    heartbeat: int = 5 * SECOND
    dead_after: int = 15 * SECOND
    lease: int = 10 * SECOND
    loop: int = SECOND
    accept_within: int = 10 * SECOND
    drain: int = 60 * SECOND
    """How long a worker that stops waits for its work, before it hands it back."""
    forget_after: int = DAY
    """How long an instance that left is remembered."""
    retention: int = 180 * SECOND
    """How long a message is kept that nobody took."""
    max_parallel: int | None = None
    pause_after: int = 10
    """So many failures in a row stop a topic until a person resumes it."""


_Kinship = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Host, kinds and tags of an instance: all that a choice looks at."""


@dataclass(frozen=True, slots=True)
class Due:
    """A flow that could run now."""

    flow: Flow
    since: int
    """When it last ran, in milliseconds: whoever has waited longest comes first."""


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
    for one in due:
        if not pools or (room is not None and len(chosen) >= room):
            break
        fitting = [pool for pool in pools.values() if _fits(pool[-1], one.flow)]
        if one.flow.lane in taken or not fitting:
            continue
        pool = min(fitting, key=lambda p: (load[p[-1].host], p[-1].host, p[-1].id))
        instance = pool.pop()
        if not pool:
            del pools[_kinship(instance)]
        load[instance.host] += 1
        taken.add(one.flow.lane)
        chosen.append(Assigned(one, instance))
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


def _fits(instance: Instance, flow: Flow) -> bool:
    return flow.kind in instance.kinds and set(flow.tags) <= set(instance.tags)
