"""Instances: who can run an execution, who counts as dead, who leads, and who gets what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import assert_never

from tidegate.model.duration import DAY, SECOND
from tidegate.model.flow import Flow, Kind
from tidegate.model.messages import InstanceState


class InstanceStatus(StrEnum):
    """Where an instance stands in its life, and who moves it on."""

    ALIVE = (
        "alive"  # by its registration, a foreign one by a heartbeat; the leader finds it overdue
    )
    CLOSING = "closing"  # by itself, to get no more work; it leaves when its work is done
    DEAD = "dead"  # by whoever got its lake while it was silent; the leader takes its work away
    UNLOADED = "unloaded"  # by the leader, or by itself when it leaves; it registers anew

    @property
    def lives(self) -> bool:
        return self in (InstanceStatus.ALIVE, InstanceStatus.CLOSING)


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
        return self.status.lives

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


class Writers(Enum):
    """Who may write to a lake at the same time: what its storage makes of two commits at once."""

    ALL = auto()  # it lets one win: HDFS, ABFS, GCS, S3 with a log store that sees to it
    ONE_HOST = auto()  # it may let both win, and locks of the machine keep them apart: `file:`
    ONE_PROCESS = auto()  # it may let both win, and nothing keeps them apart: plain S3


@dataclass(frozen=True)
class Sharing:
    """How processes share a lake; judged in the transaction that lets one of them write."""

    writers: Writers
    lake: str = ""
    """Its path, for people."""
    dead_after: int = 15 * SECOND
    """A worker that was silent for longer keeps nobody out, unless it holds a topic."""

    @property
    def one_commit_wins(self) -> bool:
        """Tell whether the dead need not be seen dead: what they still write does no harm."""
        return self.writers is Writers.ALL

    def keeps_out(self, other: str, me: str) -> bool:
        """Tell whether a process that may write leaves no room for another; both are hostids."""
        match self.writers:
            case Writers.ALL:
                return False
            case Writers.ONE_HOST:
                return host_of(other) != host_of(me)
            case Writers.ONE_PROCESS:
                return other != me
            case _:
                assert_never(self.writers)

    def clash(self, me: str, living: Iterable[Instance], held: Mapping[str, str]) -> str | None:
        """Say why a process may not write beside those that do; None when it may.

        `held` are the topics that are at work, each with its holder: a run by hand is no instance,
        and of a worker that is silent nobody can tell from afar whether it writes on.
        """
        worker = next((one for one in living if self.keeps_out(one.process, me)), None)
        if worker is not None and self.writers is Writers.ONE_HOST:
            return f"a worker lives on {worker.host}, {self._one_host}"
        if worker is not None:
            return (
                f"a worker lives on {worker.host} as process {worker.process}: {self._one_process}"
            )
        topic = next((one for one in sorted(held) if self.keeps_out(held[one], me)), None)
        if topic is None:
            return None
        rule = self._one_host if self.writers is Writers.ONE_HOST else self._one_process
        unlock = f"once that has ended for good: tidegate offsets unlock {topic}"
        return f"{topic} is held by {held[topic]}, {rule}; {unlock}"

    @property
    def _one_host(self) -> str:
        return (
            f"and {self.lake} is a path of this machine: several hosts cannot write safely to one"
            " lake on `file:`; put it on storage with an atomic log (HDFS, ABFS, GCS), or run all"
            " workers on one host"
        )

    @property
    def _one_process(self) -> str:
        on = "plain S3" if self.lake.startswith("s3") else f"{self.lake}, which is not known,"
        return f"on {on} one worker process at a time may write; give that one more slots instead"


FOR_ALL = Sharing(Writers.ALL)


def host_of(hostid: str) -> str:
    """Give the host in `host:pid:token`."""
    return hostid.partition(":")[0]


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
    keep: int = 90 * DAY
    """How long history is kept: executions, blocks, datasets, the ETL log."""
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
