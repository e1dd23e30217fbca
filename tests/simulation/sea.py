"""The lake of a play: tables by Delta's rules, written by JVMs that may outlive their process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from tests.property.lake import ModelLake, Row, Table, transformed
from tidegate.errors import LakeAway
from tidegate.model.entities import FailedRow
from tidegate.model.execution import Outcome
from tidegate.model.position import Position
from tidegate.model.records import Measures
from tidegate.ports.outside import Recorded
from tidegate.ports.store import Store
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.runner import Load
from tidegate.tables.settling import Seen, Settled, settle_appended

from .process import Letters, Process

LONGEST_LOAD = 3_000
"""Milliseconds that a load may take."""


class Sea:
    """What all processes share: the tables, and who is writing to them."""

    def __init__(self, after: Callable[[float, Callable[[], None]], None], chance: Random) -> None:
        self.tables: dict[str, Table] = {}
        self.skips_repeats = True
        self.atomic = False
        """Whether the log lets one of two writers win; on `file:` both may."""
        self.fails = 0.0
        """How likely a load fails, before its write or after it."""
        self.after = after
        self.chance = chance
        self.on_write: list[Callable[[str], None]] = []
        self.on_clash: Callable[[str], None] = lambda _: None
        self._writing: dict[str, list[Jvm]] = {}

    def land(self, table: str, rows: Sequence[Row]) -> None:
        self.tables.setdefault(table, Table()).commit(rows, "exact")

    def begin(self, table: str, jvm: Jvm) -> None:
        others = {other.name for other in self._writing.get(table, ()) if other is not jvm}
        if others and not self.atomic:
            self.on_clash(f"{jvm.name} writes {table} while {', '.join(sorted(others))} does")
        hosts = {other.host for writers in self._writing.values() for other in writers}
        if hosts - {jvm.host} and not self.atomic:
            self.on_clash(
                f"{jvm.name} writes from {jvm.host} while {', '.join(sorted(hosts))} does"
            )
        self._writing.setdefault(table, []).append(jvm)

    def end(self, table: str, jvm: Jvm) -> None:
        self._writing[table].remove(jvm)

    def may_fail(self) -> None:
        luck = self.chance.random()
        if luck < self.fails / 3:
            raise LakeAway("storage is away")
        if luck < self.fails:
            raise RuntimeError("Spark failed")

    def write(self, write: Write) -> None:
        """Commit a write, unless the table has its block already: then nothing, silently."""
        table = self.tables.setdefault(write.table, Table())
        recorded = table.transactions.get(write.writer, Recorded(0))
        if self.skips_repeats and recorded.seq >= write.record.seq:
            return
        table.commit(write.rows, "exact", overwrite=write.overwrite)
        table.transactions[write.writer] = replace(write.record, version=table.version)
        for hook in self.on_write:
            hook(write.writer)


@dataclass
class Write:
    """What a JVM has been given to write."""

    table: str
    writer: str
    record: Recorded
    """What the table is to say of it, but for its version."""
    rows: Sequence[Row]
    answer: Letters
    overwrite: bool = False
    given_up: bool = False


@dataclass
class Jvm:
    """Spark's process: it does what it was given, whatever became of whoever gave it."""

    name: str
    sea: Sea
    host: str
    alive: bool = True
    stopped_until: float = 0
    _writes: list[Write] = field(default_factory=list)

    def require_life(self) -> None:
        if not self.alive:
            raise RuntimeError("Spark's process is gone")

    def commit(self, write: Write, process: Process) -> None:
        """Have something written for a process, and wait for it; raises where it is given up."""
        self._begin(write, lambda: process.monotonic() * 1000)
        if not write.answer.receive(None):
            raise RuntimeError("the write was given up")

    def _begin(self, write: Write, now: Callable[[], float]) -> None:
        if not self.alive:
            # It died since it was last asked: whoever calls it hears that nobody answers.
            write.answer.put(False)
            return
        self._writes.append(write)
        self.sea.begin(write.table, self)
        long = self.sea.chance.random() ** 4 * LONGEST_LOAD
        self.sea.after(1 + long, lambda: self._land(write, now))

    def _land(self, write: Write, now: Callable[[], float]) -> None:
        if write not in self._writes:
            return
        if self.stopped_until > now():
            self.sea.after(self.stopped_until - now(), lambda: self._land(write, now))
            return
        self._let_go(write)
        if not write.given_up:
            self.sea.write(write)
        write.answer.put(not write.given_up)

    def end(self) -> None:
        """Die; what was not committed by now never will be."""
        if not self.alive:
            return
        self.alive = False
        for write in list(self._writes):
            self._let_go(write)
            write.answer.put(False)

    def _let_go(self, write: Write) -> None:
        self._writes.remove(write)
        self.sea.end(write.table, self)

    def interrupt(self, execution_id: str) -> None:
        for write in list(self._writes):
            if write.record.execution_id == execution_id:
                write.given_up = True


@dataclass(frozen=True)
class Shore:
    """Where a process looks at the sea from."""

    process: Process
    sea: Sea

    @property
    def now(self) -> int:
        return self.process.now()

    @property
    def tables(self) -> dict[str, Table]:
        return self.sea.tables

    def live_on(self, where: str = "") -> None:  # noqa: ARG002
        self.process.pass_by()


class Loader:
    """Implements `tables.runner.Loads` for Step and Reload."""

    def __init__(self, process: Process, jvm: Jvm, store: Store, lake: ModelLake) -> None:
        self._process = process
        self._jvm = jvm
        self._store = store
        self._lake = lake

    def interrupt(self, execution_id: str) -> None:
        self._process.pass_by()
        self._jvm.interrupt(execution_id)

    def run(self, load: Load) -> Outcome:
        sea = self._jvm.sea
        self._process.pass_by()
        self._jvm.require_life()
        recorded = self._recorded(load)
        if sea.skips_repeats and recorded.seq >= load.block.seq:
            found = (recorded.seq, recorded.last, recorded.next)
            wanted = (load.block.seq, load.block.last, load.block.next)
            assert found == wanted, f"{load.definition.topic} is at {found}, not at {wanted}"
            return Outcome(recorded.rows or 0, "skipped", recorded.version)
        sea.may_fail()
        rows = self._rows_to_write(load)
        self._process.pass_by()
        self._jvm.commit(self._write_of(load, rows), self._process)
        sea.may_fail()
        written = self._recorded(load)
        assert written.seq == load.block.seq, "another block was written under the topic's name"
        measures = Measures(load.execution.id, len(rows))
        return Outcome(len(rows), version=written.version, records=(measures,))

    def _recorded(self, load: Load) -> Recorded:
        return self._lake.recorded(load.definition.table, load.definition.topic)

    def _write_of(self, load: Load, rows: Sequence[Row]) -> Write:
        definition, block = load.definition, load.block
        record = Recorded(
            block.seq,
            block.last,
            block.next,
            execution_id=load.execution.id,
            rows=len(rows),
        )
        return Write(
            definition.table,
            definition.topic,
            record,
            rows,
            self._process.mailbox(),
            overwrite=definition.processor is Processor.RELOAD,
        )

    def _rows_to_write(self, load: Load) -> Sequence[Row]:
        """As the engine does it: all at once; where a row fails, over the declared versions."""
        if load.execution.attempt > 1 and not load.waiting:
            at = self._process.now()
            self._store.failures.pend(load.execution, load.block.seq, [], at)
        seen = self._view(load, load.block.versions if load.pinned else {})
        if load.waiting or any(why for _, why in seen):
            return self._with_care(load)
        return [row for row, _ in seen]

    def _with_care(self, load: Load) -> Sequence[Row]:
        seen = self._view(load, load.block.versions)
        settled = self._settle(load)
        fresh = [_failed(row, why) for row, why in seen if why]
        at = self._process.now()
        rows = [*fresh, *settled.rows]
        self._store.failures.pend(load.execution, load.block.seq, rows, at)
        again = self._view(load, load.block.versions, load.waiting)
        allowed = [row for row, _ in again if (row.at, _hash(row)) in settled.allowed]
        return [*(row for row, why in seen if not why), *allowed]

    def _settle(self, load: Load) -> Settled:
        positions = {row.position for row in load.waiting}
        table = self._jvm.sea.tables.get(load.definition.table, Table())
        mine = [row for row in table.rows() if row.topic == load.definition.topic]
        written = {(row.at, _hash(row)) for row in mine if row.at in positions}
        again = self._view(load, load.block.versions, load.waiting)
        seen = [Seen(row.at, _hash(row), why, {"key": row.key}) for row, why in again]
        return settle_appended(load.waiting, seen, written, load.definition.max_retries_per_entity)

    def _view(
        self, load: Load, versions: Mapping[str, int], waiting: Iterable[FailedRow] | None = None
    ) -> list[tuple[Row, str | None]]:
        """Give the rows of the block, or those that wait, each with what is wrong with it."""
        definition, block = load.definition, load.block
        tables = self._jvm.sea.tables
        read = {
            name: tables[name].rows(versions.get(name)) if name in tables else []
            for name in definition.listed
        }
        if definition.processor is Processor.RELOAD:
            everything = itertools.chain(*(read[name] for name in definition.depends_on))
            return [(row, None) for row in transformed(definition, everything)]
        base = read[definition.base]
        if waiting is None:
            rows = [row for row in base if block.last < row.at <= block.next]
            assert len(rows) == block.rows, "the block holds other rows than were counted"
        else:
            positions = {row.position for row in waiting}
            rows = [row for row in base if row.at in positions]
        known = {row.id for name in definition.unwaited for row in read[name]}
        return [
            (row, why_it_fails(definition, row, known)) for row in transformed(definition, rows)
        ]


def why_it_fails(definition: TableDefinition, row: Row, known: set[int]) -> str | None:
    """Every third order needs its customer."""
    if definition.unwaited and row.id % 3 == 0 and row.id not in known:
        return "no customer"
    return None


def _failed(row: Row, why: str | None) -> FailedRow:
    return FailedRow(Position(row.pos, row.id), _hash(row), {"key": row.key}, why or "")


def _hash(row: Row) -> int:
    return crc32(row.key.encode())
