"""Rows of `offsets`: how they are read and written, and how a topic's mutex is taken and freed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    or_,
    select,
    tuple_,
    update,
)

from tidegate.errors import ClaimLost
from tidegate.model.execution import Block, Execution, Offset, OffsetState
from tidegate.model.position import START, Position
from tidegate.store.dialect import insert_into
from tidegate.store.schema import offsets
from tidegate.store.statement import Statement

FREE: Mapping[str, Any] = {"hostid": "", "execution_id": None, "claimed_at": None}
"""The columns of a mutex that nobody holds."""


def stamp(at: ColumnElement[int]) -> ColumnElement[int]:
    """Give a row's `updated_at` after one more write: another one, within a millisecond too."""
    known = offsets.c.updated_at
    return case((known >= at, known + 1), else_=at)


# Built once. What an UPDATE sets is named when it is run; what it looks for has names of its own.
_ON_TOPIC = offsets.c.topic == bindparam("on_topic")
_IS_OURS = and_(
    _ON_TOPIC, offsets.c.execution_id == bindparam("on_execution"), offsets.c.hostid != ""
)
_OWNED = Statement(select(offsets).where(_IS_OURS).with_for_update())
_STAMPED = update(offsets).values(updated_at=stamp(bindparam("at", type_=BigInteger)))
_ONE = _STAMPED.where(_ON_TOPIC)
_CHANGE = Statement(_ONE)
_TAKE = Statement(_ONE.where(offsets.c.hostid == bindparam("held_by")).returning(offsets))
_SAME_BLOCK = and_(
    offsets.c.next_pos == bindparam("same_pos"),
    offsets.c.next_id == bindparam("same_id"),
    offsets.c.block_seq == bindparam("same_seq"),
)
_DECLARE = Statement(
    _STAMPED.where(_IS_OURS, or_(offsets.c.next_pos.is_(None), _SAME_BLOCK)).returning(offsets)
)
_MOVE_ON = Statement(
    _STAMPED.where(
        _IS_OURS,
        _SAME_BLOCK,
        tuple_(offsets.c.last_pos, offsets.c.last_id)
        <= tuple_(bindparam("to_pos", type_=BigInteger), bindparam("to_id", type_=BigInteger)),
        offsets.c.complete_to <= bindparam("to_complete"),
    ).returning(offsets.c.topic)
)
_MEND = Statement(_ONE.where(offsets.c.stale == bindparam("mended")))
_ENTER = Statement(
    lambda dialect: insert_into(dialect, offsets).on_conflict_do_nothing(
        index_elements=[offsets.c.topic]
    )
)


def destination_of(topic: str) -> str:
    """Give the table that a topic writes: its lane."""
    return re.split("[#:]", topic, maxsplit=1)[0]


def resting(seq: int) -> OffsetState:
    """Give the state of a topic that nothing is wrong with and nobody works on."""
    return OffsetState.DONE if seq > 0 else OffsetState.NEW


def enter(connection: Connection, topic: str, at: int) -> None:
    """Make sure that the topic has a row: a new one starts at the epoch."""
    row = {"topic": topic, "created_at": at, "updated_at": at, **columns_of(Offset(topic, START))}
    _ENTER.run(connection, row)


def take(
    connection: Connection, execution: Execution, hostid: str, held_by: str, at: int
) -> Offset | None:
    """Take the mutex if it still is as it was read; None when it is not."""
    taken = {
        "on_topic": execution.topic,
        "held_by": held_by,
        "hostid": hostid,
        "execution_id": execution.id,
        "claimed_at": at,
        "state": OffsetState.RUNNING.value,
        "run": at,
        "at": at,
    }
    row = _TAKE.first(connection, taken)
    return None if row is None else offset_of(row)


def declare(
    connection: Connection, execution: Execution, block: Block, processor: str, at: int
) -> Offset:
    """Write the block of a topic that is ours and has none, or this one; raises ClaimLost.

    An open block that nothing was written of may be finished in another way, up to the same end.
    """
    declared = {**_ours(execution), **_same(block), **block_columns(block), "processor": processor}
    row = _DECLARE.first(connection, {**declared, "at": at})
    if row is None:
        raise claim_lost(execution)
    return offset_of(row)


def move_on(
    connection: Connection, execution: Execution, block: Block, to: Offset, at: int
) -> bool:
    """Let a declared block end and its topic go on, never back; tell whether it was ours to do."""
    ours = {**_ours(execution), **_same(block)}
    ahead = {"to_pos": to.last.pos, "to_id": to.last.id, "to_complete": to.complete_to}
    moved = {**ours, **ahead, **columns_of(to), **block_columns(None), **FREE, "at": at}
    return _MOVE_ON.first(connection, moved) is not None


def owned(connection: Connection, execution: Execution) -> Offset:
    """Give the row of a topic that the execution holds, and keep it; raises ClaimLost."""
    row = _OWNED.first(connection, _ours(execution))
    if row is None:
        raise claim_lost(execution)
    return offset_of(row)


def release(connection: Connection, topic: str, changes: Mapping[str, Any], at: int) -> None:
    """Free the mutex of a row that the transaction has already locked, with other changes."""
    change(connection, topic, {**changes, **FREE}, at)


def change(connection: Connection, topic: str, changes: Mapping[str, Any], at: int) -> None:
    """Write some columns of a topic's row."""
    _CHANGE.run(connection, {"on_topic": topic, **changes, "at": at})


def free_of_the_dead(
    connection: Connection, execution: Execution, ended: frozenset[str], at: int
) -> None:
    """Free the mutex of an execution whose holder can no longer write; leave any other."""
    held = _OWNED.first(connection, _ours(execution))
    if held is not None and held["hostid"] in ended:
        release(connection, execution.topic, {"state": resting(held["seq"]).value}, at)


def mark_stale(connection: Connection, stale: Mapping[str, str], at: int) -> None:
    """Write down what made topics stale; one that has no row yet cannot be."""
    for topic, why in sorted(stale.items()):
        change(connection, topic, {"stale": why}, at)


def mend(connection: Connection, topic: str, mended: str, at: int) -> None:
    """Take a mark off, unless it was put on again since the work that mends it began."""
    changes = {"on_topic": topic, "mended": mended, "stale": None, "at": at}
    _MEND.run(connection, changes)


def _ours(execution: Execution) -> dict[str, str]:
    return {"on_topic": execution.topic, "on_execution": execution.id}


def _same(block: Block) -> dict[str, int]:
    return {"same_pos": block.next.pos, "same_id": block.next.id, "same_seq": block.seq}


def claim_lost(execution: Execution) -> ClaimLost:
    return ClaimLost(
        f"{execution.topic} is no longer in the hands of execution {execution.id}: it was unlocked"
        " or taken over, so nothing was written; the next run goes on with it"
    )


def columns_of(offset: Offset) -> dict[str, Any]:
    """Give every column but the topic, the stamps, and what others may write meanwhile.

    A topic is marked stale while somebody works on it: whoever holds its row must not undo that.
    """
    return {
        "destination": destination_of(offset.topic),
        "last_pos": offset.last.pos,
        "last_id": offset.last.id,
        "rows": offset.rows,
        "run": offset.run,
        "processor": offset.processor,
        "state": offset.state.value,
        "hostid": offset.hostid,
        "execution_id": offset.execution_id,
        "claimed_at": offset.claimed_at,
        "seq": offset.seq,
        "complete_to": offset.complete_to,
        "failures": offset.failures,
        "reason": offset.reason,
        "full": offset.full,
        "versions": dict(offset.versions),
        "definition_version": offset.definition_version,
        "columns": None if offset.columns is None else dict(offset.columns),
        **block_columns(offset.block),
    }


def block_columns(block: Block | None) -> dict[str, Any]:
    """Give the columns of the declared block, all None for none."""
    return {
        "block_last_pos": block and block.last.pos,
        "block_last_id": block and block.last.id,
        "next_pos": block and block.next.pos,
        "next_id": block and block.next.id,
        "block_rows": block and block.rows,
        "block_seq": block and block.seq,
        "block_full": block and block.full,
        "block_complete_to": block and block.complete_to,
        "block_definition_version": block and block.definition_version,
        "block_versions": block and dict(block.versions),
    }


def offset_of(row: Mapping[Any, Any]) -> Offset:
    return Offset(
        topic=row["topic"],
        last=Position(row["last_pos"], row["last_id"]),
        seq=row["seq"],
        rows=row["rows"],
        run=row["run"],
        processor=row["processor"],
        state=OffsetState(row["state"]),
        hostid=row["hostid"],
        execution_id=row["execution_id"],
        claimed_at=row["claimed_at"],
        complete_to=row["complete_to"],
        failures=row["failures"],
        reason=row["reason"],
        full=row["full"],
        versions=row["versions"],
        definition_version=row["definition_version"],
        columns=row["columns"],
        stale=row["stale"] or "",
        vacuumed_at=row["vacuumed_at"],
        block=_block_of(row),
    )


def _block_of(row: Mapping[Any, Any]) -> Block | None:
    if row["next_pos"] is None:
        return None
    return Block(
        last=Position(row["block_last_pos"], row["block_last_id"]),
        next=Position(row["next_pos"], row["next_id"]),
        rows=row["block_rows"],
        seq=row["block_seq"],
        full=row["block_full"],
        complete_to=row["block_complete_to"],
        definition_version=row["block_definition_version"],
        versions=row["block_versions"],
    )
