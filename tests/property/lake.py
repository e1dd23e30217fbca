"""A lake in memory: tables as lists of files, with versions and transactions as Delta keeps them.

Writers from outside land rows while everybody else works; every call moves the clock and may be
the last one of the process that makes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tidegate.errors import TopicStopped
from tidegate.model.execution import Execution, Outcome
from tidegate.model.looks import Ahead, FileStatistics, Look, unknown
from tidegate.model.position import GREATEST, Block, Offset, Position, before
from tidegate.model.records import Measures
from tidegate.ports.outside import Mailbox, Recorded
from tidegate.tables.block_finder import Cut, Found, find_block
from tidegate.tables.care import Care, Chores
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.runner import Load


class Died(BaseException):
    """The process was killed; nothing that runs in it may catch this."""


@dataclass(frozen=True)
class Row:
    pos: int
    id: int
    key: str
    """What it was made of, so that no two rows are alike."""
    topic: str = ""

    @property
    def at(self) -> Position:
        return Position(self.pos, self.id)


@dataclass(frozen=True)
class Arrival:
    """Rows that somebody else lands in one commit, right after that time."""

    time: int
    table: str
    rows: tuple[Row, ...]


@dataclass
class File:
    rows: tuple[Row, ...]
    added: int
    removed: int | None = None
    kind: str = "exact"
    """What the log says of it: `exact`, `inexact` or `unknown` statistics."""

    def statistics(self) -> FileStatistics:
        if self.kind == "unknown":
            return unknown(len(self.rows))
        poses = [row.pos for row in self.rows]
        ids = [row.id for row in self.rows]
        if self.kind == "exact":
            return FileStatistics(
                len(self.rows), min(poses), max(poses), min(ids), max(ids), exact=True
            )
        # Two rows were deleted since: the log still counts them, and they were the outermost.
        low, high = max(min(poses) - 1, 0), min(max(poses) + 1, GREATEST)
        return FileStatistics(len(self.rows) + 2, low, high, min(ids), max(ids), exact=False)


@dataclass
class Table:
    positioned: bool = True
    version: int = 0
    data_version: int = 0
    files: list[File] = field(default_factory=list)
    transactions: dict[str, Recorded] = field(default_factory=dict)

    def live(self, version: int | None = None) -> list[File]:
        at = self.version if version is None else version
        return [
            file
            for file in self.files
            if file.added <= at and (file.removed is None or file.removed > at)
        ]

    def rows(self, version: int | None = None) -> list[Row]:
        return [row for file in self.live(version) for row in file.rows]

    def commit(self, rows: Sequence[Row], kind: str, *, overwrite: bool = False) -> None:
        self.version += 1
        if overwrite:
            for file in self.live(self.version - 1):
                file.removed = self.version
        if rows or overwrite:
            self.data_version = self.version
        # A table without a position is joined, not passed on: its rows play no part here.
        if rows and self.positioned:
            self.files.append(File(tuple(rows), self.version, kind=kind))


class World:
    """The time, the tables, those who write them from outside, and who is dead."""

    def __init__(
        self,
        start: int,
        arrivals: Iterable[Arrival],
        kinds: Sequence[str] = ("exact",),
        ticks: Iterable[int] = (),
    ) -> None:
        self.now = start
        self.tables: dict[str, Table] = {}
        self.dead: set[str] = set()
        self.skips_repeats = True
        self.dies_in: int | None = None
        """After so many calls the process that works is killed."""
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.time)
        self._kinds = itertools.cycle(kinds)
        self._ticks: Iterator[int] = iter(ticks)

    def advance(self, time: int) -> None:
        """Let time pass; what arrives at the last moment lands just after it."""
        self.now += time
        while self._arrivals and self._arrivals[0].time < self.now:
            arrival = self._arrivals.pop(0)
            self.land(arrival.table, arrival.rows)

    def land(self, table: str, rows: Sequence[Row]) -> None:
        self.tables.setdefault(table, Table()).commit(rows, self.kind())

    def kind(self) -> str:
        return next(self._kinds)

    def live_on(self, where: str = "") -> None:
        """Pass a place at which the process may be killed; time goes on meanwhile."""
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                raise Died(where)
        self.advance(next(self._ticks, 0))

    @property
    def last_arrival(self) -> int:
        return max((arrival.time for arrival in self._arrivals), default=self.now)


class ModelRuntime:
    """Implements `ports.Runtime` over the world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count()

    def now(self) -> int:
        self._world.live_on("now")
        return self._world.now

    def monotonic(self) -> float:
        return self._world.now / 1000

    def sleep(self, seconds: float) -> None:
        self._world.advance(round(seconds * 1000))

    def uuid(self) -> str:
        return f"{next(self._numbers):08}"

    def spawn(self, name: str, work: Callable[[], None]) -> None:  # noqa: ARG002
        raise AssertionError(f"a run in the foreground needs nothing beside it, not {name}")

    def mailbox(self) -> Mailbox[Any]:
        raise AssertionError("a run in the foreground waits for nobody")


class ModelHolders:
    """Implements `ports.Holders`: a process lives until the world says that it died."""

    def __init__(self, world: World, me: str) -> None:
        self._world = world
        self._me = me

    @property
    def me(self) -> str:
        return self._me

    def lives(self, hostid: str) -> bool:
        return hostid not in self._world.dead

    def wait_for_end(self, hostid: str, seconds: float) -> bool:  # noqa: ARG002
        return not self.lives(hostid)

    def end(self, hostid: str) -> None:
        self._world.dead.add(hostid)


class Waters(Protocol):
    """What a lake is seen through: its tables, the time, and a place at which time may pass."""

    @property
    def now(self) -> int: ...

    @property
    def tables(self) -> dict[str, Table]: ...

    def live_on(self, where: str = "") -> None: ...


class ModelLake:
    """Implements `block_finder.Lake`, with the real `find_block` over the files' statistics."""

    def __init__(self, world: Waters) -> None:
        self._world = world
        self.scans = 0

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look:  # noqa: ARG002
        at = self._world.now
        self._world.live_on("look")
        found = self._world.tables.get(table)
        if found is None:
            return Look(table, at, exists=False)
        newest = max((row.at for row in found.rows()), default=None)
        return Look(
            table,
            at,
            positioned=found.positioned,
            newest=newest if found.positioned else None,
            version=found.version,
            data_version=found.data_version if data_version else -1,
        )

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead:  # noqa: ARG002
        self._world.live_on("ahead")
        found = self._world.tables.get(table, Table())
        beyond = [file for file in found.live() if file.statistics().last > last]
        rows = sum(len(file.rows) for file in beyond)
        first = min((row.pos for row in found.rows() if row.at > last), default=None)
        return Ahead(first, rows)

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]:
        self._world.live_on("versions")
        known = self._world.tables
        return {table: known[table].version for table in tables if table in known}

    def recorded(self, table: str, writer: str) -> Recorded:
        found = self._world.tables.get(table, Table())
        return found.transactions.get(writer, Recorded(0))

    def require_there(self) -> None: ...

    def drop(self, table: str) -> None:
        self._world.tables.pop(table, None)

    def find_block(
        self, definition: TableDefinition, last: Position, frontier: Position, bound: int
    ) -> Found | None:
        self._world.live_on("find_block")
        base = self._world.tables.get(definition.base, Table())
        files = [file.statistics() for file in base.live()]
        upto = min(frontier, before(bound))
        return find_block(files, last, upto, definition.maxstep, Scan(base.rows()))


class Scan:
    """Implements `block_finder.Scan` by sorting all rows, and counts how often it was asked."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._positions = sorted(row.at for row in rows)
        self.ranges: list[tuple[Position, Position]] = []

    def __call__(self, after: Position, upto: Position, want: int) -> Cut:
        self.ranges.append((after, upto))
        within = [at for at in self._positions if after < at <= upto]
        if not within:
            return Cut(None, 0, more=False)
        end = within[min(want, len(within)) - 1]
        taken = sum(at <= end for at in within)
        return Cut(end, taken, more=taken < len(within))


def transformed(definition: TableDefinition, rows: Iterable[Row]) -> list[Row]:
    """Give what a topic makes of rows of its base: row by row, some dropped, some twice."""
    drop, twice = definition.vars.get("drop", 0), definition.vars.get("twice", 0)
    made: list[Row] = []
    for row in rows:
        if drop and row.id % drop == 0:
            continue
        for copy in range(2 if twice and row.id % twice == 0 else 1):
            key = f"{row.key}>{definition.topic}{'*' * copy}"
            made.append(replace(row, key=key, topic=definition.topic))
    return made


@dataclass(frozen=True)
class Witness:
    """What a load saw of a table: the rows up to a pos, and who looked."""

    table: str
    upto: int
    rows: frozenset[Row]
    by: str


class ModelLoader:
    """Implements `tables.runner.Loads` for Step and Reload, by Delta's rules for transactions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.witnesses: list[Witness] = []
        self.declared: dict[tuple[str, int], Block] = {}

    def interrupt(self, execution_id: str) -> None:
        raise AssertionError(f"nobody interrupts {execution_id}")

    def run(self, load: Load) -> Outcome:
        definition, block = load.definition, load.block
        known = self.declared.setdefault((definition.topic, block.seq), block)
        assert (known.last, known.next) == (block.last, block.next), "next changed"
        destination = self._world.tables.get(definition.table, Table())
        recorded = destination.transactions.get(definition.topic, Recorded(0))
        if self._world.skips_repeats and recorded.seq >= block.seq:
            if (recorded.seq, recorded.last, recorded.next) != (block.seq, block.last, block.next):
                raise TopicStopped(f"{definition.topic} is at {recorded}, not at {block}")
            return Outcome(recorded.rows or 0, "skipped", recorded.version)
        rows = self._read(load)
        self._world.live_on(f"{definition.processor}.before_write")
        version = self._write(definition, block, rows, load.execution)
        self._world.live_on(f"{definition.processor}.after_write")
        measures = Measures(load.execution.id, len(rows))
        return Outcome(len(rows), version=version, records=(measures,))

    def _read(self, load: Load) -> list[Row]:
        definition, block = load.definition, load.block
        versions = block.versions if load.pinned else {}
        read = {
            name: self._world.tables[name].rows(versions.get(name))
            for name in definition.depends_on
        }
        if definition.processor is Processor.RELOAD:
            return transformed(definition, itertools.chain(*read.values()))
        rows = [row for row in read[definition.base] if block.last < row.at <= block.next]
        assert len(rows) == block.rows, "the block holds other rows than were counted"
        upto = max(row.pos for row in rows)
        for name in definition.depends_on[1:]:
            seen = frozenset(row for row in read[name] if row.pos <= upto)
            self.witnesses.append(Witness(name, upto, seen, definition.topic))
        return transformed(definition, rows)

    def _write(
        self, definition: TableDefinition, block: Block, rows: Sequence[Row], execution: Execution
    ) -> int:
        table = self._world.tables.setdefault(definition.table, Table())
        reload = definition.processor is Processor.RELOAD
        table.commit(rows, self._world.kind(), overwrite=reload)
        table.transactions[definition.topic] = Recorded(
            block.seq, block.last, block.next, table.version, execution.id, len(rows)
        )
        return table.version


class Silent:
    """Implements `ports.kinds.Watcher` for nobody."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def maintained(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


class Idle:
    """Implements `tables.care.Caretaker` for tables that are always tidy."""

    def chores(self, table: str, offset: Offset) -> Chores:  # noqa: ARG002
        return Chores()

    def run(self, table: str, chores: Chores, pins: Sequence[int]) -> Care:
        raise AssertionError(f"{table} needs nothing", chores, pins)
