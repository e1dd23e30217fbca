"""The life of executions, from assign to commit, one transaction a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tidegate.errors import StoreError, TidegateError
from tidegate.model.care import Care
from tidegate.model.execution import (
    NOTHING_TO_DO,
    Block,
    Execution,
    ExecutionState,
    Offset,
    OffsetState,
)
from tidegate.model.streams import streams_of
from tidegate.ports import Claimed, Commit, Committed, Parcel
from tidegate.store import execution_rows, failures, journal, phases
from tidegate.store.claims import Refusal, claim
from tidegate.store.dialect import among, hold
from tidegate.store.leaders import require_term
from tidegate.store.lineages import remove
from tidegate.store.messages import post, rows_of
from tidegate.store.offset_rows import (
    claim_lost,
    declare,
    destination_of,
    mark_stale,
    mend,
    move_on,
    owned,
    release,
    resting,
)
from tidegate.store.reader import Reader
from tidegate.store.schema import etl_executions
from tidegate.store.statement import Statement
from tidegate.store.writer import Writer

# Built once: they are asked for each execution, or at every turn of a leader.
_COLUMNS = etl_executions.c
_ONE = select(etl_executions).where(_COLUMNS.id == bindparam("on_id"))
_SOME = Statement(lambda dialect: select(etl_executions).where(among(dialect, _COLUMNS.id, "ids")))
_STILL_OPEN = (
    select(etl_executions)
    .where(_COLUMNS.finished_at.is_(None))
    .order_by(_COLUMNS.assigned_at, _COLUMNS.id)
)
_OPEN = Statement(_STILL_OPEN)
_OPEN_OF = Statement(
    lambda dialect: _STILL_OPEN.where(among(dialect, _COLUMNS.etl_worker, "instances"))
)


class SqlExecutions:
    """Implements `ports.Executions`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def assign(self, execution: Execution) -> None:
        if execution.assigned_at is None:
            raise StoreError(
                f"execution {execution.id} of {execution.topic} has no assigned_at; whoever"
                " assigns it has to say when"
            )
        self._writer.write(lambda connection: execution_rows.keep(connection, execution))

    def assign_all(
        self, executions: Sequence[Execution], term: int, enclosed: Sequence[Parcel], at: int
    ) -> None:
        messages = rows_of(enclosed, at)

        def write(connection: Connection) -> None:
            require_term(connection, term)
            for execution in executions:
                execution_rows.keep(connection, execution)
            post(connection, messages)

        if executions:
            self._writer.write(write)

    def hand_out(self, queued: Sequence[Execution], term: int) -> Sequence[Execution]:
        def write(connection: Connection) -> Sequence[Execution]:
            require_term(connection, term)
            return [one for one in queued if execution_rows.hand_out(connection, one)]

        return self._writer.write(write) if queued else []

    def claim(
        self, execution: Execution, hostid: str, dead: frozenset[str] | None, at: int
    ) -> Claimed:
        taken = self._writer.write(
            lambda connection: claim(connection, execution, hostid, dead, at)
        )
        if isinstance(taken, Refusal):
            raise taken.as_error()
        return taken

    def declare(self, execution: Execution, block: Block, processor: str, at: int) -> Offset:
        return self._writer.write(
            lambda connection: declare(connection, execution, block, processor, at)
        )

    def commit(self, commit: Commit) -> Committed:
        return self._writer.write(lambda connection: _commit(connection, commit))

    def nothing_to_do(self, execution: Execution, complete_to: int, at: int) -> None:
        self._writer.write(lambda connection: _nothing(connection, execution, complete_to, at))

    def fail(self, execution: Execution, reason: str, trace: str, stop: bool, at: int) -> None:
        state = OffsetState.STOPPED if stop else OffsetState.FAILED
        reason = _storable(reason)
        why = f"{reason}\n{_storable(trace)}" if trace else reason

        def write(connection: Connection) -> None:
            held = owned(connection, execution)
            changes = {"state": state.value, "reason": reason, "failures": held.failures + 1}
            # Counted from now: a long run would else have used up its wait before it failed.
            release(connection, execution.topic, {**changes, "run": at}, at)
            execution_rows.fail(connection, execution, reason, why, at)

        self._writer.write(write)

    def hand_back(self, execution: Execution, why: str, at: int) -> None:
        def write(connection: Connection) -> None:
            # A claim whose answer was lost may still be on its way to the end of its transaction.
            hold(connection, f"lane {destination_of(execution.topic)}")
            held = owned(connection, execution)
            release(connection, execution.topic, {"state": resting(held.seq).value}, at)
            execution_rows.lose(connection, execution.id, why, why, at)

        self._writer.write(write)

    def lose(self, lost: Mapping[str, str], ended: frozenset[str], term: int, at: int) -> None:
        def write(connection: Connection) -> None:
            require_term(connection, term)
            execution_rows.lose_some(connection, lost, ended, at)

        if lost:
            self._writer.write(write)

    def follow(self, told: Sequence[tuple[Execution, Execution]], term: int, at: int) -> None:
        def write(connection: Connection) -> None:
            require_term(connection, term)
            for before, after in told:
                execution_rows.follow(connection, before, after, at)

        if told:
            self._writer.write(write)

    def ask_to_cancel(self, execution_id: str, at: int) -> bool:
        return self._writer.write(
            lambda connection: execution_rows.ask_to_cancel(connection, execution_id, at)
        )

    def open(self, instances: Sequence[str] | None = None) -> Sequence[Execution]:
        if instances is None:
            rows = self._reader.rows_of(_OPEN)
        else:
            rows = self._reader.rows_of(_OPEN_OF, {"instances": list(instances)})
        return [execution_rows.execution_of(row) for row in rows]

    def tended(self, execution: Execution, before: Offset, care: Care, at: int) -> None:
        self._writer.write(lambda connection: _tended(connection, execution, before, care, at))

    def get(self, execution_id: str) -> Execution | None:
        row = self._reader.first(_ONE, {"on_id": execution_id})
        return None if row is None else execution_rows.execution_of(row)

    def some(self, ids: Collection[str]) -> Mapping[str, Execution]:
        rows = self._reader.rows_of(_SOME, {"ids": list(ids)})
        return {row["id"]: execution_rows.execution_of(row) for row in rows}

    def list(
        self,
        *,
        flow: str | None = None,
        state: ExecutionState | None = None,
        limit: int | None = None,
    ) -> Sequence[Execution]:
        columns = etl_executions.c
        statement = select(etl_executions).limit(limit)
        if flow is not None:
            statement = statement.where(columns.flow_id == flow)
        if state is not None:
            statement = statement.where(columns.state == state.value)
        if state is not None and state.open:
            # True of every open one; it lets the index of the open ones be used.
            statement = statement.where(columns.finished_at.is_(None))
        newest_first = statement.order_by(columns.assigned_at.desc(), columns.id.desc())
        return [execution_rows.execution_of(row) for row in self._reader.rows(newest_first)]


def _commit(connection: Connection, commit: Commit) -> Committed:
    if not move_on(connection, commit.execution, commit.block, commit.offset, commit.at):
        raise _not_moved(connection, commit)
    outcome = commit.outcome
    failed = _settle(connection, commit)
    ended = execution_rows.finish(
        connection, commit.execution, outcome.rows, outcome.note, commit.at, failed
    )
    journal.record(connection, commit)
    streams = streams_of(
        ended, commit.definition, commit.block, rows=outcome.rows, failed=failed[0]
    )
    phases.tell(connection, streams, commit.at)
    return Committed(ended, streams)


def _not_moved(connection: Connection, commit: Commit) -> TidegateError:
    """Say what is in the way of a commit."""
    held, offset = owned(connection, commit.execution), commit.offset
    if offset.last < held.last or offset.complete_to < held.complete_to:
        return StoreError(
            f"{offset.topic} would go back from {held.last}, complete to {held.complete_to}, to"
            f" {offset.last}, complete to {offset.complete_to}, so nothing was written; look"
            " whether its offset was set by hand"
        )
    # Its block is another, or none any more.
    return claim_lost(commit.execution)


def _settle(connection: Connection, commit: Commit) -> tuple[int, bool]:
    """Make true what became of failing rows, and of the topics beside this one."""
    execution, rebuilt, at = commit.execution, commit.rebuilt, commit.at
    if rebuilt is not None:
        if rebuilt.mends:
            mend(connection, execution.topic, rebuilt.mends, at)
        mark_stale(connection, rebuilt.stale, at)
    if rebuilt is None or not rebuilt.shadow:
        return failures.settle(connection, execution, commit.block.seq, at)
    remove(connection, [rebuilt.shadow], "tidegate", at)
    return failures.take_over(connection, execution, rebuilt.shadow, at)


def _tended(
    connection: Connection, execution: Execution, before: Offset, care: Care, at: int
) -> None:
    held = owned(connection, execution)
    changes: dict[str, Any] = {"state": before.state.value, "run": before.run}
    if (held.seq, held.failures) != (before.seq, before.failures):
        # It moved between the look at it and the claim, and that was no work of ours.
        changes = {"state": (OffsetState.FAILED if held.failures else OffsetState.DONE).value}
    if care.tried_vacuum:
        changes["vacuumed_at"] = at
    release(connection, execution.topic, changes, at)
    execution_rows.finish(connection, execution, 0, care.note, at)


def _nothing(connection: Connection, execution: Execution, complete_to: int, at: int) -> None:
    held = owned(connection, execution)
    if held.block is not None:
        # Somebody declared one for us: it has to be finished, not forgotten.
        raise claim_lost(execution)
    changes: dict[str, Any] = {
        "state": OffsetState.NOJOBS.value,
        "complete_to": max(held.complete_to, complete_to),
        "failures": 0,
        "reason": "",
        "full": False,
        "run": at,
    }
    release(connection, execution.topic, changes, at)
    execution_rows.finish(connection, execution, 0, NOTHING_TO_DO, at)


def _storable(text: str) -> str:
    """Replace what a foreign error text may hold and a database may not."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
