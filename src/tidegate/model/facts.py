"""What a plan looks at: positions, definitions, and what was seen of the lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.model.execution import Offset
from tidegate.model.lineage import Definition
from tidegate.model.position import Position


class Look(NamedTuple):
    """What was seen of a table in the lake at one time; a tuple, as thousands a second are made."""

    table: str
    looked_at: int
    exists: bool = True
    positioned: bool = True
    """It has the columns that carry a position."""
    newest: Position | None = None
    """Its greatest position; None when it holds no row."""
    unread: int = 0
    """Rows without pos or id: nobody can tell where they belong."""
    version: int = -1
    data_version: int = -1
    """The last version that brought other data: compaction and the like left out."""
    trouble: str = ""
    """Why it cannot be read, although it is there."""

    def again(self, at: int) -> Look:
        """Give the same as seen at another time."""
        return Look(self.table, at, *self[2:])


@dataclass(frozen=True, slots=True)
class Ahead:
    """What lies in the base table beyond a topic's last position."""

    first: int | None
    """The pos of the first such row; None when there is none."""
    rows: int = 0
    """About how many there are, by the files' statistics."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a plan looks at."""

    definitions: Mapping[str, Definition]
    offsets: Mapping[str, Offset]
    looks: Mapping[str, Look]
    """Of landed tables, and of what Reloads read."""
    now: int
    ahead: Mapping[str, Ahead] = field(default_factory=dict)
    """By topic; one that is missing may have eligible rows."""
    waiting: frozenset[str] = frozenset()
    """The topics with rows that failed and wait to be tried again."""
    live_holders: frozenset[str] = frozenset()
    """The hostids whose processes still live."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The applied definition's version, by topic."""
    eager: bool = False
    """Asked for by a person: neither `repeat` nor the wait after a failure counts."""
    asked: frozenset[str] = frozenset()
    """The topics for which a person has asked so since they last ran."""
    paused: Mapping[str, str] = field(default_factory=dict)
    """The topics that a person has paused, with who and why."""
    ordered: Sequence[Definition] = ()
    """The definitions, each behind those it waits for; found out where it is not given."""
