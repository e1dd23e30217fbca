"""The lake of a play: tables by Delta's rules, written by JVMs that may outlive their process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from tests.property.lake import ModelLake, Row, Table, transformed
from tidegate.model.execution import Measures, Outcome, Work
from tidegate.model.failed import FailedRow, Seen, Settled, settle_appended
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import Position
from tidegate.ports import Recorded, Store

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
        self._writing.setdefault(table, []).append(jvm)

    def end(self, table: str, jvm: Jvm) -> None:
        self._writing[table].remove(jvm)

    def write(self, load: Load) -> None:
        """Commit a load, unless the table has its block already: then nothing happens, silently."""
        definition, block = load.work.definition, load.work.block
        table = self.tables.setdefault(definition.table, Table())
        recorded = table.transactions.get(definition.topic, Recorded(0))
        if self.skips_repeats and recorded.seq >= block.seq:
            return
        reload = definition.processor is Processor.RELOAD
        table.commit(load.rows, "exact", overwrite=reload)
        table.transactions[definition.topic] = Recorded(
            block.seq, block.last, block.next, table.version, load.work.execution.id, len(load.rows)
        )
        for hook in self.on_write:
            hook(definition.topic)


@dataclass
class Load:
    """A write that a JVM has been given."""

    work: Work
    rows: Sequence[Row]
    answer: Letters
    given_up: bool = False


@dataclass
class Jvm:
    """Spark's process: it does what it was given, whatever became of whoever gave it."""

    name: str
    sea: Sea
    alive: bool = True
    stopped_until: float = 0
    _loads: list[Load] = field(default_factory=list)

    def write(self, load: Load, now: Callable[[], float]) -> None:
        if not self.alive:
            # It died since it was last asked: whoever calls it hears that nobody answers.
            load.answer.put(False)
            return
        self._loads.append(load)
        self.sea.begin(load.work.definition.table, self)
        long = self.sea.chance.random() ** 4 * LONGEST_LOAD
        self.sea.after(1 + long, lambda: self._land(load, now))

    def _land(self, load: Load, now: Callable[[], float]) -> None:
        if load not in self._loads:
            return
        if self.stopped_until > now():
            self.sea.after(self.stopped_until - now(), lambda: self._land(load, now))
            return
        self._let_go(load)
        if not load.given_up:
            self.sea.write(load)
        load.answer.put(not load.given_up)

    def end(self) -> None:
        """Die; what was not committed by now never will be."""
        if not self.alive:
            return
        self.alive = False
        for load in list(self._loads):
            self._let_go(load)
            load.answer.put(False)

    def _let_go(self, load: Load) -> None:
        self._loads.remove(load)
        self.sea.end(load.work.definition.table, self)

    def interrupt(self, execution_id: str) -> None:
        for load in list(self._loads):
            if load.work.execution.id == execution_id:
                load.given_up = True


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
    """Implements `ports.Runner` for Step and Reload."""

    def __init__(self, process: Process, jvm: Jvm, store: Store, lake: ModelLake) -> None:
        self._process = process
        self._jvm = jvm
        self._store = store
        self._lake = lake

    def interrupt(self, execution_id: str) -> None:
        self._process.pass_by()
        self._jvm.interrupt(execution_id)

    def run(self, work: Work) -> Outcome:
        sea = self._jvm.sea
        self._process.pass_by()
        if not self._jvm.alive:
            raise RuntimeError("Spark's process is gone")
        recorded = self._lake.recorded(work.definition)
        if sea.skips_repeats and recorded.seq >= work.block.seq:
            found = (recorded.seq, recorded.last, recorded.next)
            wanted = (work.block.seq, work.block.last, work.block.next)
            assert found == wanted, f"{work.definition.topic} is at {found}, not at {wanted}"
            return Outcome(recorded.rows or 0, recorded.version, None, "skipped")
        self._may_fail()
        rows = self._rows_to_write(work)
        self._process.pass_by()
        load = Load(work, rows, self._process.mailbox())
        self._jvm.write(load, lambda: self._process.monotonic() * 1000)
        if not load.answer.receive(None):
            raise RuntimeError("the load was given up")
        self._may_fail()
        written = self._lake.recorded(work.definition)
        assert written.seq == work.block.seq, "another block was written under the topic's name"
        return Outcome(len(rows), written.version, Measures(work.execution.id, len(rows)))

    def _may_fail(self) -> None:
        sea = self._jvm.sea
        if sea.chance.random() < sea.fails:
            raise RuntimeError("Spark failed")

    def _rows_to_write(self, work: Work) -> Sequence[Row]:
        """As the engine does it: all at once; where a row fails, over the declared versions."""
        if work.execution.attempt > 1 and not work.waiting:
            at = self._process.now()
            self._store.failures.pend(work.execution, work.block.seq, [], at)
        seen = self._view(work, work.block.versions if work.pinned else {})
        if work.waiting or any(why for _, why in seen):
            return self._with_care(work)
        return [row for row, _ in seen]

    def _with_care(self, work: Work) -> Sequence[Row]:
        seen = self._view(work, work.block.versions)
        settled = self._settle(work)
        fresh = [_failed(row, why) for row, why in seen if why]
        at = self._process.now()
        rows = [*fresh, *settled.rows]
        self._store.failures.pend(work.execution, work.block.seq, rows, at)
        again = self._view(work, work.block.versions, work.waiting)
        allowed = [row for row, _ in again if (row.at, _hash(row)) in settled.allowed]
        return [*(row for row, why in seen if not why), *allowed]

    def _settle(self, work: Work) -> Settled:
        positions = {row.position for row in work.waiting}
        table = self._jvm.sea.tables.get(work.definition.table, Table())
        mine = [row for row in table.rows() if row.topic == work.definition.topic]
        written = {(row.at, _hash(row)) for row in mine if row.at in positions}
        again = self._view(work, work.block.versions, work.waiting)
        seen = [Seen(row.at, _hash(row), why, {"key": row.key}) for row, why in again]
        return settle_appended(work.waiting, seen, written, work.definition.max_retries_per_entity)

    def _view(
        self, work: Work, versions: Mapping[str, int], waiting: Iterable[FailedRow] | None = None
    ) -> list[tuple[Row, str | None]]:
        """Give the rows of the block, or those that wait, each with what is wrong with it."""
        definition, block = work.definition, work.block
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


def why_it_fails(definition: Definition, row: Row, known: set[int]) -> str | None:
    """Every third order needs its customer."""
    if definition.unwaited and row.id % 3 == 0 and row.id not in known:
        return "no customer"
    return None


def _failed(row: Row, why: str | None) -> FailedRow:
    return FailedRow(Position(row.pos, row.id), _hash(row), {"key": row.key}, why or "")


def _hash(row: Row) -> int:
    return crc32(row.key.encode())
