"""Tables: looked at, loaded, tidied, and told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.model.blocks import Found
from tidegate.model.care import Care, Chores
from tidegate.model.execution import (
    Execution,
    Offset,
    Outcome,
    Work,
)
from tidegate.model.facts import Ahead, Look
from tidegate.model.lineage import Definition
from tidegate.model.position import Position
from tidegate.model.streams import Stream


@dataclass(frozen=True)
class Recorded:
    """What a destination table's own log says of a topic's last write."""

    seq: int
    """0 when nothing was written under the topic's name."""
    last: Position | None = None
    next: Position | None = None
    version: int | None = None
    execution_id: str | None = None
    rows: int | None = None


class Looks(Protocol):
    """Looks at tables, without a JVM: versions, positions, recorded writes."""

    def look(self, table: str, pos: str, id: str, *, data_version: bool = False) -> Look: ...

    def ahead(self, table: str, pos: str, id: str, last: Position) -> Ahead: ...

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]: ...

    def recorded(self, definition: Definition) -> Recorded: ...


class Lake(Looks, Protocol):
    """Looks, and the bounds of blocks, which may need a scan."""

    def find_block(
        self, definition: Definition, last: Position, frontier: Position, bound: int
    ) -> Found | None: ...

    def drop(self, table: str) -> None:
        """Delete a table that was built beside another one, with its files."""


class Caretaker(Protocol):
    """Compaction and VACUUM of one table."""

    def chores(self, table: str, offset: Offset) -> Chores:
        """Say what a table needs, from its log alone."""

    def run(self, table: str, chores: Chores, pins: Sequence[int]) -> Care:
        """Do it; what open blocks of other topics pin of the table stays readable."""


class Runner(Protocol):
    """Steps 4 and 5 of a block, for one kind of flow."""

    def run(self, work: Work) -> Outcome: ...

    def interrupt(self, execution_id: str) -> None:
        """Let a run fail where it stands; nothing happens when it is not running."""


class Reporter(Protocol):
    """Step 7: told of what an execution does, once the store knows it."""

    def began(self, execution: Execution) -> None: ...

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None:
        """Tell of the end, with the streams of a commit: together, as the store has them."""
