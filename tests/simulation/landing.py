"""A Landing into the sea, by a JVM that may outlive its process."""

from __future__ import annotations

import pyarrow as pa

from tests.property.lake import Row, Table
from tidegate.errors import TopicStopped
from tidegate.model.execution import Landed
from tidegate.model.position import Position
from tidegate.ports.outside import Batch, LandedBatch, Recorded

from .process import Process
from .sea import Jvm, Write


class PlayedLanding:
    """Implements `ports.outside.Landing`."""

    def __init__(self, process: Process, jvm: Jvm) -> None:
        self._process = process
        self._jvm = jvm

    def pos_for(self, table: str) -> int:
        self._process.pass_by()
        newest = max((row.pos for row in self._table(table).rows()), default=0)
        # By a clock that may be behind, and is never ahead: else what is built from the table had
        # to wait for that time, longer than a play lasts.
        right = int(self._process.monotonic() * 1000)
        return max(min(self._process.now(), right), newest + 1)

    def land(self, batch: Batch, rows: pa.Table) -> LandedBatch:
        sea = self._jvm.sea
        self._process.pass_by()
        self._jvm.require_life()
        recorded = self._recorded(batch)
        if sea.skips_repeats and recorded.seq >= batch.seq:
            return _landed(batch, recorded, skipped=True)
        sea.may_fail()
        made = [
            Row(batch.pos, id, " ".join(map(str, row.values())), batch.writer)
            for id, row in enumerate(rows.to_pylist())
        ]
        self._process.pass_by()
        record = Recorded(
            batch.seq,
            next=Position(batch.pos, len(made) - 1),
            execution_id=batch.execution_id,
            rows=len(made),
        )
        write = Write(batch.table, batch.writer, record, made, self._process.mailbox())
        self._jvm.commit(write, self._process)
        sea.may_fail()
        return _landed(batch, self._recorded(batch), skipped=False)

    def _recorded(self, batch: Batch) -> Recorded:
        return self._table(batch.table).transactions.get(batch.writer, Recorded(0))

    def _table(self, name: str) -> Table:
        return self._jvm.sea.tables.get(name, Table())


def _landed(batch: Batch, recorded: Recorded, *, skipped: bool) -> LandedBatch:
    """Say what came of a batch; raises where the table holds another one under its name."""
    last, version = recorded.next, recorded.version
    assert last is not None
    assert version is not None
    if (recorded.seq, last.pos) != (batch.seq, batch.pos):
        raise TopicStopped(
            f"{batch.table} holds block {recorded.seq} of {batch.writer} at {last.pos}, not block"
            f" {batch.seq} at {batch.pos}"
        )
    landed = Landed(batch.table, last, batch.complete_to, version)
    return LandedBatch(recorded.rows or 0, landed, skipped)
