"""Step 3a as one transaction: the lane, the mutex, what a dead holder left, and the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from tidegate.errors import MutexError
from tidegate.model.execution import Execution
from tidegate.model.position import rfc3339
from tidegate.ports import Claimed
from tidegate.store.dialect import hold
from tidegate.store.execution_rows import lose, lose_unclaimed, reject, start
from tidegate.store.failures import waiting
from tidegate.store.lineages import in_force
from tidegate.store.offset_rows import destination_of, enter, take
from tidegate.store.schema import offsets
from tidegate.store.statement import Row, Statement

_LANE = Statement(
    select(offsets.c.topic, offsets.c.hostid, offsets.c.execution_id, offsets.c.claimed_at)
    .where(offsets.c.destination == bindparam("on_destination"))
    .order_by(offsets.c.topic)
)


@dataclass(frozen=True)
class Refusal:
    """A claim that somebody else stands in the way of."""

    topic: str
    holder: str
    since: int

    def as_error(self) -> MutexError:
        return MutexError(self.topic, self.holder, rfc3339(self.since))


def claim(
    connection: Connection, execution: Execution, hostid: str, dead: frozenset[str] | None, at: int
) -> Claimed | Refusal:
    """Take a topic for an execution. A refusal is given, not raised: it is to be committed."""
    destination = destination_of(execution.topic)
    # Else two topics of one table, each looking at the other's free row, would both pass.
    hold(connection, f"lane {destination}")
    while True:
        lane = _lane(connection, destination)
        if execution.topic not in lane:
            enter(connection, execution.topic, at)
            continue
        refusal = _refusal(lane, execution.topic, hostid, dead or frozenset())
        if refusal is not None:
            if dead is not None:
                reject(connection, execution, f"rejected: {refusal.as_error()}", at)
            return refusal
        before = lane[execution.topic]
        taken = take(connection, execution, hostid, before["hostid"], at)
        if taken is not None:
            break
        # On PostgreSQL an unlock may come between the look and the taking: look again.
    if before["execution_id"] is not None:
        lost = _why_lost(before["hostid"])
        lose(connection, before["execution_id"], lost, lost, at)
    lose_unclaimed(connection, execution, at)
    applied = in_force(connection, execution.topic)
    started = start(connection, execution, applied.definition if applied else None, hostid, at)
    return Claimed(started, taken, applied, waiting(connection, execution.topic))


def _why_lost(hostid: str) -> str:
    # An empty hostid beside an execution: somebody freed the mutex with SQL of their own.
    return f"lost: {hostid} died" if hostid else "lost: its mutex was freed in the database"


def _lane(connection: Connection, destination: str) -> Mapping[str, Row]:
    rows = _LANE.rows(connection, {"on_destination": destination})
    return {row["topic"]: row for row in rows}


def _refusal(
    lane: Mapping[str, Row], topic: str, hostid: str, dead: frozenset[str]
) -> Refusal | None:
    """Name who is in the way: a live holder of the topic, or another process in its lane."""
    free = dead | {""}
    if lane[topic]["hostid"] not in free:
        return _refused_by(lane[topic])
    welcome = free | {hostid}
    others = (row for row in lane.values() if row["hostid"] not in welcome)
    return next((_refused_by(row) for row in others), None)


def _refused_by(row: Row) -> Refusal:
    return Refusal(row["topic"], row["hostid"], row["claimed_at"] or 0)
