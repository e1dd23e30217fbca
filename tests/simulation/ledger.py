"""Holds a flow that counts against what was promised of it, after each of its commits.

I1 its table has every number up to its marker, once, and its books say so
I2 its marker only moves forwards, by blocks that were declared
and how far its table is landed moves in that very commit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.kinds.counting import CountDefinition, counted, pos_of
from tests.property.lake import Table

from .database import Database
from .sea import Sea


class Ledger:
    """What was seen of one flow that counts."""

    def __init__(
        self,
        database: Database,
        sea: Sea,
        definition: CountDefinition,
        breaks: Callable[[str], None],
    ) -> None:
        self._database = database
        self._sea = sea
        self._definition = definition
        self._breaks = breaks

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def table(self) -> str:
        return self._definition.table

    @property
    def marker(self) -> Mapping[str, Any]:
        found = self._database.ask(
            "SELECT last_marker FROM offsets WHERE topic = ?", self._definition.name
        )
        return _read(found[0][0]) if found else {}

    def wants(self, definition: CountDefinition) -> None:
        """Hold the flow against another definition from now on."""
        self._definition = definition

    def marked(self, before: str | None, after: str | None) -> None:
        """See its marker move: everything in it, and its pos, forwards."""
        was, now = _read(before), _read(after)
        back = [thing for thing, n in counted(was).items() if counted(now).get(thing, 0) < n]
        if back or (was and (not now or pos_of(now) <= pos_of(was))):
            self._breaks(f"I2: {self._definition.name} went back from {before} to {after}")

    def written(self) -> None:
        """See a block in its table: the one that is declared."""
        name = self._definition.name
        open = self._database.ask(
            "SELECT block_last_marker, next_marker FROM offsets WHERE topic = ? AND block_seq = ?",
            name,
            self._sea.tables[self.table].transactions[name].seq,
        )
        if not open:
            self._breaks(f"I2: {name} wrote a block that is not declared")
            return
        last, next = map(_read, open[0])
        wanted = Counter(_keys(counted(next))) - Counter(_keys(counted(last)))
        newest = self._landed(lambda pos: pos == pos_of(next))
        doubled = [key for key, times in self._landed(lambda _: True).items() if times > 1]
        if doubled:
            self._breaks(f"I1: {self.table} holds {doubled[0]} twice")
        elif newest != wanted:
            self._breaks(f"I1: {name} wrote {sorted(newest)} for the block of {sorted(wanted)}")

    def moved(self, arrived: bool) -> None:
        """See its commit: what is in the table now, and in the books."""
        name, marker = self._definition.name, self.marker
        if not arrived:
            self._breaks(f"I1: {name} moved, and {self.table} is landed no further")
        last, complete_to = self._arrived()
        if last != pos_of(marker) or complete_to != pos_of(marker):
            self._breaks(f"I1: {self.table} is landed to {last}, and {name} at {marker}")
        wanted = Counter(_keys(counted(marker)))
        if self._landed(lambda _: True) != wanted:
            self._breaks(f"I1: {self.table} does not hold what {name} has counted: {marker}")
        for trouble in self._wrong_in_books(wanted.total()):
            self._breaks(f"I1: {trouble}")

    def unfinished(self) -> Sequence[str]:
        """Say what is not done yet."""
        definition, marker = self._definition, self.marker
        if definition.left(marker):
            return [f"{definition.name} is at {marker}"]
        return []

    def _wrong_in_books(self, rows: int) -> Iterator[str]:
        name, ask = self._definition.name, self._database.ask
        ((seq,),) = ask("SELECT seq FROM offsets WHERE topic = ?", name)
        told = ask(
            "SELECT entity_id FROM dataset_entities"
            " WHERE flow_id = ? AND entity_id LIKE 'counted:%' ORDER BY location",
            name,
        )
        if [id for (id,) in told] != [f"counted:{number}" for number in range(1, seq + 1)]:
            yield f"the log of {name} tells of {told}, not of {seq} blocks"
        kept = ask(
            "SELECT seq, last_marker, next_marker FROM blocks WHERE topic = ? ORDER BY seq", name
        )
        if [number for number, _, _ in kept] != list(range(1, seq + 1)):
            yield f"{name} has kept the blocks {kept}, not {seq} of them"
        if [last for _, last, _ in kept[1:]] != [next for _, _, next in kept[:-1]]:
            yield f"the blocks of {name} do not join: {kept}"
        ((sum,),) = ask("SELECT sum(rows) FROM etl_executions WHERE flow_id = ?", name)
        if sum != rows:
            yield f"the executions of {name} tell of {sum} rows, not of {rows}"

    def _arrived(self) -> tuple[int, int]:
        found = self._database.ask(
            "SELECT last_pos, complete_to FROM offsets WHERE topic = ?", self.table
        )
        return found[0] if found else (0, 0)

    def _landed(self, at: Callable[[int], bool]) -> Counter[str]:
        rows = self._sea.tables.get(self.table, Table()).rows()
        return Counter(row.key for row in rows if at(row.pos))


def _read(marker: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(marker) if marker else {}
    return found


def _keys(upto: Mapping[str, int]) -> Iterator[str]:
    for thing, last in upto.items():
        yield from (f"{thing} {number}" for number in range(1, last + 1))
