"""Positions and mutexes: the rows of `offsets`, read, set, seen, resumed; how one is written.

A table's topic counts in (pos, id), and its columns are SQL's to compare. Any other flow keeps a
marker of its own, JSON, beside them, and these stay where they began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
    update,
)

from tidegate.errors import ClaimLost, MutexError, UnknownName, WrongUse
from tidegate.model.execution import Execution, Landed
from tidegate.model.looks import SOURCE, Look, after_look
from tidegate.model.position import START, Block, Offset, OffsetState, Position, rfc3339
from tidegate.store.backends import among, insert_into
from tidegate.store.schema import offsets
from tidegate.store.writer import Reader, Statement, Writer

FREE: Mapping[str, Any] = {"hostid": "", "execution_id": None, "claimed_at": None}
"""The columns of a mutex that nobody holds."""
OVER: Mapping[str, Any] = {"reason": "", "away_since": None, "wait": 0}
"""The columns of what went wrong, once that is over."""


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
_LOCKED = Statement(select(offsets).where(_ON_TOPIC).with_for_update())
_STAMPED = update(offsets).values(updated_at=stamp(bindparam("at", type_=BigInteger)))
_ONE = _STAMPED.where(_ON_TOPIC)
_CHANGE = Statement(_ONE)
_TAKE = Statement(_ONE.where(offsets.c.hostid == bindparam("held_by")).returning(offsets))
_SAME_BLOCK = and_(
    offsets.c.next_pos == bindparam("same_pos"),
    offsets.c.next_id == bindparam("same_id"),
    offsets.c.block_seq == bindparam("same_seq"),
    func.coalesce(type_coerce(offsets.c.next_marker, Text), "")
    == bindparam("same_marker", type_=Text),
)
_DECLARE = Statement(_STAMPED.where(_IS_OURS, offsets.c.next_pos.is_(None)).returning(offsets))
_DECLARE_ANEW = Statement(
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


def resting(seq: int) -> OffsetState:
    """Give the state of a topic that nothing is wrong with and nobody works on."""
    return OffsetState.DONE if seq > 0 else OffsetState.NEW


def left_as_it_is(held: Offset[Any]) -> dict[str, Any]:
    """Give the state of a flow that is let go where it stands.

    What leaves its flow where it is was never RUNNING: what it found there, it must not hide.
    """
    running = held.state is OffsetState.RUNNING
    return {"state": (resting(held.seq) if running else held.state).value}


def enter(connection: Connection, topic: str, lane: str, at: int) -> None:
    """Make sure that the flow has a row: a new one starts at the epoch."""
    begun = Offset(topic, START, lane)
    row = {"topic": topic, "created_at": at, "updated_at": at, **columns_of(begun)}
    _ENTER.run(connection, row)


def take(
    connection: Connection, execution: Execution, hostid: str, held_by: str, at: int
) -> Offset[Any] | None:
    """Take the mutex if it still is as it was read; None when it is not."""
    taken = {
        "on_topic": execution.topic,
        "held_by": held_by,
        # Its definition may have another lane than when its row was made.
        "lane": execution.lane,
        "hostid": hostid,
        "execution_id": execution.id,
        "claimed_at": at,
        "at": at,
    }
    if execution.operation.moves:
        taken |= {"state": OffsetState.RUNNING.value, "run": at}
    row = _TAKE.first(connection, taken)
    return None if row is None else offset_of(row)


def declare(
    connection: Connection, execution: Execution, block: Block[Any], at: int
) -> Offset[Any]:
    """Write the block of a flow that is ours and has none, or this one; raises ClaimLost.

    Once declared it stays as it is. Only an operation that finishes a block anew may change one
    that nothing was written of, up to the same end.
    """
    declared = {**_ours(execution), **block_columns(block), "processor": block.processor, "at": at}
    if execution.operation.finishes_anew:
        row = _DECLARE_ANEW.first(connection, {**declared, **_same(block)})
    else:
        row = _DECLARE.first(connection, declared)
    if row is not None:
        return offset_of(row)
    held = owned(connection, execution)
    if not is_same(held.block, block):
        raise claim_lost(execution)
    return held


def is_same(declared: Block[Any] | None, block: Block[Any] | None) -> bool:
    """Tell whether a block is the one that was declared, as the database would write either."""
    if declared is None or block is None:
        return declared is block
    columns = block_columns(declared) == block_columns(block)
    return columns and declared.processor == block.processor


def move_on(
    connection: Connection, execution: Execution, block: Block[Any], to: Offset[Any], at: int
) -> bool:
    """Let a declared block end and its flow go on, never back; tell whether it was ours to do."""
    ours = {**_ours(execution), **_same(block)}
    pos, id = _pair(to.last)
    ahead = {"to_pos": pos, "to_id": id, "to_complete": to.complete_to}
    moved = {**ours, **ahead, **columns_of(to), "at": at}
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
        release(connection, execution.topic, left_as_it_is(offset_of(held)), at)


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


def _same(block: Block[Any]) -> dict[str, Any]:
    pos, id = _pair(block.next)
    marker = _marker(block.next)
    text = "" if marker is None else orjson.dumps(marker).decode()
    return {"same_pos": pos, "same_id": id, "same_seq": block.seq, "same_marker": text}


def _pair(at: Position | Mapping[str, Any]) -> Position:
    """Give what stands in the columns of (pos, id): for a flow that counts otherwise, the start."""
    return at if isinstance(at, Position) else START


def _marker(at: Position | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give a flow's own marker as it is written: in one order, since it is compared as text."""
    if isinstance(at, Position):
        return None
    marker: Mapping[str, Any] = orjson.loads(orjson.dumps(dict(at), option=orjson.OPT_SORT_KEYS))
    return marker


def claim_lost(execution: Execution) -> ClaimLost:
    return ClaimLost(
        f"{execution.topic} is no longer in the hands of execution {execution.id}: it was unlocked"
        " or taken over, so nothing was committed; the next run finds what its table holds, and"
        " goes on from there"
    )


def columns_of(offset: Offset[Any]) -> dict[str, Any]:
    """Give every column but the topic, the stamps, and what others may write meanwhile.

    A topic is marked stale while somebody works on it: whoever holds its row must not undo that.
    """
    return {
        "lane": offset.lane,
        **bounds("last", offset.last),
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
        "away_since": offset.away_since,
        "wait": offset.wait,
        "full": offset.full,
        "versions": dict(offset.versions),
        "definition_version": offset.definition_version,
        "columns": None if offset.columns is None else dict(offset.columns),
        **block_columns(offset.block),
    }


def bounds(name: str, at: Position | Mapping[str, Any] | None) -> dict[str, Any]:
    """Give the columns of one end of a block, all None for none."""
    if at is None:
        return {f"{name}_pos": None, f"{name}_id": None, f"{name}_marker": None}
    pos, id = _pair(at)
    return {f"{name}_pos": pos, f"{name}_id": id, f"{name}_marker": _marker(at)}


def block_columns(block: Block[Any] | None) -> dict[str, Any]:
    """Give the columns of the declared block, all None for none."""
    return {
        **bounds("block_last", block.last if block else None),
        **bounds("next", block.next if block else None),
        "block_rows": block and block.rows,
        "block_seq": block and block.seq,
        "block_full": block and block.full,
        "block_complete_to": block and block.complete_to,
        "block_definition_version": block and block.definition_version,
        "block_versions": block and dict(block.versions),
    }


def bound_of(row: Mapping[Any, Any], name: str) -> Any:
    """Read one end of a block: the flow's own marker where it has one, else (pos, id)."""
    marker = row[f"{name}_marker"]
    return Position(row[f"{name}_pos"], row[f"{name}_id"]) if marker is None else marker


def offset_of(row: Mapping[Any, Any]) -> Offset[Any]:
    return Offset(
        topic=row["topic"],
        last=bound_of(row, "last"),
        lane=row["lane"],
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
        away_since=row["away_since"],
        wait=row["wait"],
        full=row["full"],
        versions=row["versions"],
        definition_version=row["definition_version"],
        columns=row["columns"],
        stale=row["stale"] or "",
        vacuumed_at=row["vacuumed_at"],
        block=_block_of(row),
    )


def _block_of(row: Mapping[Any, Any]) -> Block[Any] | None:
    if row["next_pos"] is None:
        return None
    return Block(
        last=bound_of(row, "block_last"),
        next=bound_of(row, "next"),
        rows=row["block_rows"],
        seq=row["block_seq"],
        full=row["block_full"],
        complete_to=row["block_complete_to"],
        definition_version=row["block_definition_version"],
        versions=row["block_versions"],
        processor=row["processor"],
    )


def land(connection: Connection, landed: Landed, at: int) -> None:
    """Move a landed table on, with the block that brought its rows; never back."""
    enter(connection, landed.table, landed.table, at)
    # Kept from others from here on: else one that lands less could be the last to write.
    known = locked(connection, landed.table)
    behind = landed.last < known.last
    moved = replace(
        known,
        last=max(known.last, landed.last),
        complete_to=max(known.complete_to, landed.complete_to),
        versions=known.versions if behind else {landed.table: landed.version},
        processor=SOURCE,
        state=OffsetState.DONE,
        run=at,
    )
    columns = columns_of(moved)
    changed = {name: columns[name] for name in (*_LOOKED_AT, "complete_to")}
    change(connection, landed.table, changed, at)


# Built once: a leader and its workers ask again and again.
_ALL = select(offsets).order_by(offsets.c.topic)
_ONE_OFFSETS = select(offsets).where(offsets.c.topic == bindparam("on_topic"))
_SOME = Statement(lambda dialect: select(offsets).where(among(dialect, offsets.c.topic, "ids")))
_IN_LANE = select(offsets).where(offsets.c.lane == bindparam("on_lane"))
_LOOKED_AT = ("last_pos", "last_id", "run", "processor", "state", "versions")
"""What a look at a landed table, or a landing, sets."""


# What people may change with SQL of their own is looked at, too: that leaves no stamp.
_STAMPS = select(
    offsets.c.topic,
    offsets.c.updated_at,
    offsets.c.hostid,
    offsets.c.state,
    offsets.c.last_pos,
    offsets.c.last_id,
)


class SqlOffsets:
    """Implements `ports.Offsets`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def all(self) -> Mapping[str, Offset[Any]]:
        return {row["topic"]: offset_of(row) for row in self._reader.rows(_ALL)}

    def stamps(self) -> Mapping[str, object]:
        return {row[0]: row for row in self._reader.plain(_STAMPS)}

    def some(self, topics: Collection[str]) -> Mapping[str, Offset[Any]]:
        rows = self._reader.rows_of(_SOME, {"ids": list(topics)})
        return {row["topic"]: offset_of(row) for row in rows}

    def in_lane(self, lane: str) -> Sequence[Offset[Any]]:
        return [offset_of(row) for row in self._reader.rows(_IN_LANE, {"on_lane": lane})]

    def get(self, topic: str) -> Offset[Any] | None:
        row = self._reader.first(_ONE_OFFSETS, {"on_topic": topic})
        return None if row is None else offset_of(row)

    def put(self, offset: Offset[Any], at: int) -> None:
        self._writer.write(lambda connection: _put(connection, offset, at))

    def see(self, looks: Sequence[Look], at: int) -> None:
        if looks:
            self._writer.write(lambda connection: _see(connection, looks, at))

    def resume(self, topic: str, at: int) -> None:
        self._writer.write(lambda connection: _resume(connection, topic, at))


def _put(connection: Connection, offset: Offset[Any], at: int) -> None:
    columns = {**columns_of(offset), **FREE}
    # Whoever knows no lane does not take the row out of the one that it has.
    known = {name: value for name, value in columns.items() if name != "lane" or value}
    written = connection.execute(
        insert_into(connection.dialect.name, offsets)
        .values(topic=offset.topic, created_at=at, updated_at=at, **columns)
        .on_conflict_do_update(
            index_elements=[offsets.c.topic],
            set_={**known, "updated_at": stamp(literal(at, BigInteger))},
            where=offsets.c.hostid == "",
        )
        .returning(offsets.c.topic)
    ).first()
    if written is None:
        held = locked(connection, offset.topic)
        raise MutexError(offset.topic, held.hostid, rfc3339(held.claimed_at or 0))


def _see(connection: Connection, looks: Sequence[Look], at: int) -> None:
    tables = [look.table for look in looks]
    known = {row["topic"]: offset_of(row) for row in _SOME.rows(connection, {"ids": tables})}
    # In one order, so that two processes that look at the same tables wait and do not clash.
    changed = [
        {
            "topic": seen.topic,
            "created_at": at,
            "updated_at": at,
            **columns_of(replace(seen, run=at)),
        }
        for look in sorted(looks, key=lambda look: look.table)
        if (seen := after_look(known.get(look.table), look)) is not None
    ]
    if not changed:
        return
    statement = insert_into(connection.dialect.name, offsets)
    new, columns = statement.excluded, offsets.c
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[columns.topic],
            set_={**{name: new[name] for name in _LOOKED_AT}, "updated_at": stamp(new.updated_at)},
            where=tuple_(columns.last_pos, columns.last_id) <= tuple_(new.last_pos, new.last_id),
        ),
        changed,
    )


def _resume(connection: Connection, topic: str, at: int) -> None:
    stopped = locked(connection, topic)
    if stopped.state is not OffsetState.STOPPED:
        raise WrongUse(f"{topic} is not stopped, its state is {stopped.state}: nothing to resume")
    changes: dict[str, Any] = {
        "state": resting(stopped.seq).value,
        # An open block stays one that failed: a mended definition may finish it.
        "failures": 1 if stopped.block else 0,
        **OVER,
    }
    change(connection, topic, changes, at)


def locked(connection: Connection, topic: str) -> Offset[Any]:
    """Give a flow's row, and keep it from others; raises UnknownName."""
    row = _LOCKED.first(connection, {"on_topic": topic})
    if row is None:
        raise UnknownName(
            f"the store knows no topic {topic}; check its spelling against lineage.yaml, or run it"
            " once"
        )
    return offset_of(row)
