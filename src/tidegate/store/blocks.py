"""The guards of a block: claim, declare, commit, checkpoint, and every other way to let one go.

    claim        3a  assigned → running; the lane and the mutex, also from a dead holder, on a
                     lake that this process may write to
    declare      3c  the block, once; the same one again changes nothing
    commit       6   only while the claim holds, only the declared block, only forwards
    checkpoint   6   the same, and the next block is declared: the execution goes on
    nothing_to_do, fail, hand_back, let_go, unlock   the flow stays where it is, and is free

Each is one transaction. Whoever was stopped and goes on too late finds that no row fits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select

from tidegate.errors import MutexError, StoreError, TidegateError, WrongUse
from tidegate.model.execution import NOTHING_TO_DO, Execution, Stream, streams_of
from tidegate.model.instances import FOR_ALL, Sharing
from tidegate.model.position import Block, Offset, OffsetState, rfc3339
from tidegate.ports.store import Claimed, Commit, Committed
from tidegate.store import executions, records
from tidegate.store.backends import among, hold
from tidegate.store.datasets import append, settle
from tidegate.store.definitions import DefinitionReader
from tidegate.store.fleet import lake_lost
from tidegate.store.positions import (
    FREE,
    OVER,
    claim_lost,
    declare,
    enter,
    is_same,
    land,
    left_as_it_is,
    locked,
    move_on,
    offset_of,
    owned,
    release,
    take,
)
from tidegate.store.schema import offsets
from tidegate.store.writer import Reader, Row, Statement, Writer

# The flow's own row, too, where that still stands in another lane.
_IN_LANE = Statement(
    select(offsets.c.topic, offsets.c.hostid, offsets.c.execution_id, offsets.c.claimed_at)
    .where(or_(offsets.c.lane == bindparam("on_lane"), offsets.c.topic == bindparam("on_topic")))
    .order_by(offsets.c.topic)
)

_HELD = Statement(
    lambda dialect: (
        select(offsets)
        .where(among(dialect, offsets.c.hostid, "ended"))
        # In one order, so that two who look at the same time wait and do not clash.
        .order_by(offsets.c.topic)
        .with_for_update()
    )
)
_HOLDERS = Statement(select(offsets.c.hostid).where(offsets.c.hostid != "").distinct())


class SqlBlocks:
    """Implements `ports.Blocks`."""

    def __init__(self, reader: Reader, writer: Writer, definitions: DefinitionReader) -> None:
        self._reader, self._writer, self._definitions = reader, writer, definitions

    def claim(
        self,
        execution: Execution,
        hostid: str,
        dead: frozenset[str] | None,
        at: int,
        lake: Sharing = FOR_ALL,
    ) -> Claimed:
        taken = self._writer.write(
            lambda connection: _claim(
                connection, self._definitions, execution, hostid, dead, at, lake
            )
        )
        if isinstance(taken, Claimed):
            return taken
        raise taken.as_error()

    def declare(self, execution: Execution, block: Block[Any], at: int) -> Offset[Any]:
        return self._writer.write(lambda connection: declare(connection, execution, block, at))

    def commit(self, commit: Commit) -> Committed:
        return self._writer.write(lambda connection: _commit(connection, commit))

    def checkpoint(self, commit: Commit, next: Block[Any] | None) -> Committed:
        return self._writer.write(lambda connection: _checkpoint(connection, commit, next))

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        self._writer.write(lambda connection: _nothing(connection, execution, complete_to, at))

    def fail(
        self,
        execution: Execution,
        reason: str,
        trace: str,
        stop: bool,
        at: int,
        *,
        wait: int = 0,
        away: bool = False,
    ) -> None:
        reason = _storable(reason)
        failed = _Failure(reason, _storable(trace), stop, wait, away)
        self._writer.write(lambda connection: _fail(connection, execution, failed, at))

    def hand_back(self, execution: Execution, why: str, at: int) -> None:
        self._writer.write(lambda connection: _hand_back(connection, execution, why, at))

    def holders(self) -> Collection[str]:
        return {row["hostid"] for row in self._reader.rows_of(_HOLDERS)}

    def let_go(self, ended: Collection[str], at: int) -> None:
        self._writer.write(lambda connection: _let_go(connection, ended, at))

    def unlock(self, topic: str, at: int) -> str:
        return self._writer.write(lambda connection: _unlock(connection, topic, at))


@dataclass(frozen=True)
class _Refusal:
    """A claim that somebody else stands in the way of."""

    topic: str
    holder: str
    since: int

    def as_error(self) -> MutexError:
        return MutexError(self.topic, self.holder, rfc3339(self.since))


@dataclass(frozen=True)
class _Clash:
    """A claim on a lake that others write to."""

    why: str

    def as_error(self) -> WrongUse:
        return WrongUse(self.why)


def _claim(
    connection: Connection,
    definitions: DefinitionReader,
    execution: Execution,
    hostid: str,
    dead: frozenset[str] | None,
    at: int,
    lake: Sharing,
) -> Claimed | _Refusal | _Clash:
    """Take a flow for an execution. A refusal is given, not raised: it is to be committed."""
    clash = lake_lost(connection, lake, hostid, dead or frozenset())
    if clash is not None:
        if dead is not None:
            executions.reject(connection, execution, f"rejected: {clash}", at)
        return _Clash(clash)
    # Else two flows of one lane, each looking at the other's free row, would both pass.
    hold(connection, f"lane {execution.lane}")
    while True:
        lane = _lane(connection, execution)
        if execution.topic not in lane:
            enter(connection, execution.topic, execution.lane, at)
            continue
        refusal = _refusal(lane, execution.topic, hostid, dead or frozenset())
        if refusal is not None:
            if dead is not None:
                executions.reject(connection, execution, f"rejected: {refusal.as_error()}", at)
            return refusal
        before = lane[execution.topic]
        taken = take(connection, execution, hostid, before["hostid"], at)
        if taken is not None:
            break
        # On PostgreSQL an unlock may come between the look and the taking: look again.
    if before["execution_id"] is not None:
        lost = _why_lost(before["hostid"])
        executions.lose(connection, before["execution_id"], lost, lost, at)
    executions.lose_unclaimed(connection, execution, at)
    applied = definitions.in_force(connection, execution.topic)
    definition = applied.definition if applied else None
    started = executions.start(connection, execution, definition, hostid, at)
    return Claimed(started, taken, applied)


def _why_lost(hostid: str) -> str:
    # An empty hostid beside an execution: somebody freed the mutex with SQL of their own.
    return f"lost: {hostid} died" if hostid else "lost: its mutex was freed in the database"


def _lane(connection: Connection, execution: Execution) -> Mapping[str, Row]:
    wanted = {"on_lane": execution.lane, "on_topic": execution.topic}
    return {row["topic"]: row for row in _IN_LANE.rows(connection, wanted)}


def _refusal(
    lane: Mapping[str, Row], topic: str, hostid: str, dead: frozenset[str]
) -> _Refusal | None:
    """Name who is in the way: a live holder of the flow, or another process in its lane."""
    free = dead | {""}
    if lane[topic]["hostid"] not in free:
        return _refused_by(lane[topic])
    welcome = free | {hostid}
    others = (row for row in lane.values() if row["hostid"] not in welcome)
    return next((_refused_by(row) for row in others), None)


def _refused_by(row: Row) -> _Refusal:
    return _Refusal(row["topic"], row["hostid"], row["claimed_at"] or 0)


def _commit(connection: Connection, commit: Commit) -> Committed:
    execution, at = commit.execution, commit.at
    if commit.block is None:
        _stay(connection, execution, at)
    else:
        _move(connection, commit, commit.block, replace(commit.moved(), **FREE))
    failed = _leave_behind(connection, commit)
    # As its records left it.
    offset = locked(connection, execution.topic)
    rows, note = commit.outcome.rows, commit.outcome.note
    ended = executions.finish(connection, execution, rows, failed, note, at)
    return Committed(ended, offset, _record_streams(connection, ended, commit))


def _checkpoint(connection: Connection, commit: Commit, next: Block[Any] | None) -> Committed:
    execution, block, at = commit.execution, commit.block, commit.at
    held = owned(connection, execution)
    if block is None:
        raise claim_lost(execution)
    if held.seq == block.seq and is_same(held.block, next):
        # It was written, and only the answer was lost.
        goes_on = executions.go_on(connection, execution, 0, 0, at)
        return Committed(goes_on, held, streams_of(goes_on, commit.outcome.streams))
    _move(connection, commit, block, replace(commit.moved(), **_still_held(held)))
    failed = _leave_behind(connection, commit)
    if next is None:
        offset = owned(connection, execution)
    else:
        offset = declare(connection, execution, next, at)
    goes_on = executions.go_on(connection, execution, commit.outcome.rows, failed, at)
    return Committed(goes_on, offset, _record_streams(connection, goes_on, commit))


def _still_held(held: Offset[Any]) -> dict[str, Any]:
    """Give what of a row says who works on it: a checkpoint changes nothing of that."""
    return {
        "state": OffsetState.RUNNING,
        "hostid": held.hostid,
        "execution_id": held.execution_id,
        "claimed_at": held.claimed_at,
    }


def _move(connection: Connection, commit: Commit, block: Block[Any], to: Offset[Any]) -> None:
    """Let the declared block end and the flow go on; raises ClaimLost, StoreError."""
    if not move_on(connection, commit.execution, block, to, commit.at):
        raise _not_moved(connection, commit, to)
    records.keep_block(connection, commit, block)


def _stay(connection: Connection, execution: Execution, at: int) -> None:
    """Free a flow that an operation leaves where it is."""
    held = owned(connection, execution)
    release(connection, execution.topic, left_as_it_is(held), at)


def _leave_behind(connection: Connection, commit: Commit) -> int:
    """Write what the outcome brings beside the position; give how many entities failed."""
    execution, outcome, at = commit.execution, commit.outcome, commit.at
    failed = sum(records.apply(connection, execution, one, at) for one in outcome.records)
    # After them: what took the place of the flow's own has no row that is pending for this block.
    failed += settle(connection, execution, commit.block.seq, at) if commit.block else 0
    if outcome.entities:
        append(connection, execution.flow_id, outcome.entities, at)
    for landed in sorted(outcome.landed, key=lambda one: one.table):
        land(connection, landed, at)
    return failed + outcome.failed


def _record_streams(connection: Connection, execution: Execution, commit: Commit) -> list[Stream]:
    streams = streams_of(execution, commit.outcome.streams)
    records.record_streams(connection, streams, commit.at)
    return streams


def _not_moved(connection: Connection, commit: Commit, to: Offset[Any]) -> TidegateError:
    """Say what is in the way of a commit."""
    held = owned(connection, commit.execution)
    behind = _is_behind(to, held) or to.complete_to < held.complete_to
    if behind:
        return StoreError(
            f"{to.topic} would go back from {held.last}, complete to {held.complete_to}, to"
            f" {to.last}, complete to {to.complete_to}, so nothing was committed;"
            " look whether its offset was set by hand"
        )
    # Its block is another, or none any more.
    return claim_lost(commit.execution)


def _is_behind(to: Offset[Any], held: Offset[Any]) -> bool:
    return isinstance(to.last, tuple) and isinstance(held.last, tuple) and to.last < held.last


def _nothing(connection: Connection, execution: Execution, complete_to: int, at: int) -> None:
    held = owned(connection, execution)
    if held.block is not None:
        # Somebody declared one for us: it has to be finished, not forgotten.
        raise claim_lost(execution)
    changes: dict[str, Any] = {
        "state": OffsetState.NOJOBS.value,
        "complete_to": max(held.complete_to, complete_to),
        "failures": 0,
        **OVER,
        "full": False,
        "run": at,
    }
    release(connection, execution.topic, changes, at)
    executions.finish(connection, execution, 0, 0, NOTHING_TO_DO, at)


@dataclass(frozen=True)
class _Failure:
    """Why an execution failed, and what its flow is to do then."""

    reason: str
    trace: str
    stop: bool
    wait: int
    away: bool

    @property
    def comment(self) -> str:
        return f"away: {self.reason}" if self.away else self.reason

    @property
    def in_full(self) -> str:
        return f"{self.comment}\n{self.trace}" if self.trace else self.comment

    def changes(self, held: Offset[Any], at: int) -> dict[str, Any]:
        """Give what becomes of the flow's row: an outage is not counted, a failure ends one."""
        if self.away:
            since = at if held.away_since is None else held.away_since
            state, failures = OffsetState.AWAY, held.failures
        else:
            state = OffsetState.STOPPED if self.stop else OffsetState.FAILED
            since, failures = None, held.failures + 1
        return {
            "state": state.value,
            "reason": self.reason,
            "failures": failures,
            "away_since": since,
            "wait": self.wait,
            # Counted from now: a long run would else have used up its wait before it failed.
            "run": at,
        }


def _fail(connection: Connection, execution: Execution, failed: _Failure, at: int) -> None:
    held = owned(connection, execution)
    release(connection, execution.topic, failed.changes(held, at), at)
    executions.fail(connection, execution, failed.comment, failed.in_full, at)


def _hand_back(connection: Connection, execution: Execution, why: str, at: int) -> None:
    # A claim whose answer was lost may still be on its way to the end of its transaction.
    hold(connection, f"lane {execution.lane}")
    held = owned(connection, execution)
    release(connection, execution.topic, left_as_it_is(held), at)
    executions.lose(connection, execution.id, why, why, at)


def _let_go(connection: Connection, ended: Collection[str], at: int) -> None:
    for row in _HELD.rows(connection, {"ended": list(ended)}):
        release(connection, row["topic"], left_as_it_is(offset_of(row)), at)
        if row["execution_id"] is not None:
            lost = _why_lost(row["hostid"])
            executions.lose(connection, row["execution_id"], lost, lost, at)


def _unlock(connection: Connection, topic: str, at: int) -> str:
    held = locked(connection, topic)
    if not held.hostid:
        return ""
    release(connection, topic, left_as_it_is(held), at)
    if held.execution_id is not None:
        by_hand = "unlocked by hand"
        executions.lose(connection, held.execution_id, by_hand, f"lost: {by_hand}", at)
    return held.hostid


def _storable(text: str) -> str:
    """Replace what a foreign error text may hold and a database may not."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
