"""Instances: who can run an execution, how long ago they were heard, and who counts as dead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.model.messages import InstanceState

EXTERNAL = "external"
"""The kind of execution that is nobody's business but the foreign worker's."""
TABLE = "table"


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
    kinds: tuple[str, ...] = (EXTERNAL,)
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
