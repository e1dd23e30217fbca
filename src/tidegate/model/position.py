"""Positions: how far a flow has come, the block that is to take it further, and who holds it.

A table's position is (pos, id). Another kind has a marker of its own, a JSON object: an offset for
each partition, a list of files, a text. The rule is the same for all: a block is declared before it
runs, never computed again, and only its commit moves the position.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

GREATEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60
"""So much of a text that is no position is repeated in the message."""


class Position(NamedTuple):
    """A row's place in its table: the time in milliseconds since the epoch, then the id.

    A tuple, since a plan over thousands of topics does little else than to compare positions.
    """

    pos: int
    id: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `POS,ID`: whole milliseconds (or an RFC 3339 time) and an id."""
        time, comma, ident = text.strip().strip("()[]").rpartition(",")
        shown = repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        if not comma:
            raise ValueError(f"{shown} is not a position; write POS,ID, such as 1700000000000,42")
        try:
            return cls(_milliseconds(time.strip()), _number(ident.strip(), -1))
        except ValueError as error:
            raise ValueError(
                f"{shown} is not a position ({error}); write POS,ID, such as 1700000000000,42"
            ) from None

    def __str__(self) -> str:
        return f"({self.pos}, {self.id})"


START = Position(0, -1)
"""Where a new flow stands: before every row from the epoch on, whatever its markers are."""
M = TypeVar("M", default=Position, bound=Position | Mapping[str, Any])
"""How a kind marks where it is."""


class OffsetState(StrEnum):
    """What the last execution of a flow left behind."""

    NEW = "NEW"  # nothing ran yet
    RUNNING = "RUNNING"  # claimed; its holder moves it on
    DONE = "DONE"  # the last block is committed
    NOJOBS = "NOJOBS"  # there was nothing to take
    FAILED = "FAILED"  # the last execution failed; the next one tries again
    AWAY = "AWAY"  # what it stands on was away; the next one goes on where that is over
    STOPPED = "STOPPED"  # a person has to look; `tidegate resume` lets it go on


@dataclass(frozen=True)
class Block(Generic[M]):
    """What lies in (last, next] of what a flow reads, as declared: never computed again."""

    last: M
    next: M
    rows: int
    seq: int
    full: bool
    """More rows were eligible than the block took."""
    complete_to: int
    """What the flow's complete_to becomes with this block."""
    definition_version: int
    versions: Mapping[str, int] = field(default_factory=dict)
    """The Delta versions of what it reads, the base first, when the block was declared."""
    processor: str = ""
    """What turns the block into rows, for people who look for problems: Step, Reload and so on."""


@dataclass(frozen=True)
class Offset(Generic[M]):
    """A flow's row in `offsets`: its position, its mutex and its open block."""

    topic: str
    """The flow's id, under which it keeps its position."""
    last: M
    lane: str = ""
    """What it writes to, as its row says; empty where no row is known."""
    seq: int = 0
    """The sequence number of the last committed block."""
    rows: int = 0
    run: int | None = None
    """When the row was last moved, in milliseconds."""
    processor: str = ""
    state: OffsetState = OffsetState.NEW
    hostid: str = ""
    """Who holds the mutex; empty when it is free."""
    execution_id: str | None = None
    claimed_at: int | None = None
    complete_to: int = 0
    failures: int = 0
    reason: str = ""
    """Why the topic failed, was stopped or cannot go on, in one sentence."""
    away_since: int | None = None
    """Since when what it stands on fails, such as storage; None while that holds."""
    wait: int = 0
    """How long it is left alone after a failure, where more is known than how often it failed."""
    full: bool = False
    """The last committed block left eligible rows behind."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The Delta versions that the last committed load read."""
    definition_version: int | None = None
    """The definition that the last committed load used."""
    columns: Mapping[str, str] | None = None
    """The columns that the last committed load gave, with their types; None when not known."""
    stale: str = ""
    """What the table no longer agrees with, since when, and what mends it; empty when nothing."""
    vacuumed_at: int | None = None
    """When a VACUUM of the table was last tried."""
    block: Block[M] | None = None
    """The declared block that is not committed yet."""

    @property
    def next(self) -> M | None:
        return self.block.next if self.block else None

    @property
    def goes_on(self) -> bool:
        """The last execution failed or died, so that the next one is its retry."""
        return self.block is not None or self.failures > 0 or self.away_since is not None

    def behind(self, block: Block[M], rows: int, at: int) -> Offset[M]:
        """The row as it is once the block is done: moved, and free of any block."""
        return replace(
            self,
            last=block.next,
            seq=block.seq,
            rows=rows,
            run=at,
            state=OffsetState.DONE,
            complete_to=max(self.complete_to, block.complete_to),
            failures=0,
            reason="",
            away_since=None,
            wait=0,
            full=block.full,
            versions=block.versions,
            definition_version=block.definition_version,
            block=None,
        )

    def standing(self) -> Block[M]:
        """Give a block that goes nowhere, for an operation that leaves the flow where it is."""
        return Block(
            last=self.last,
            next=self.last,
            rows=0,
            seq=self.seq,
            full=self.full,
            complete_to=self.complete_to,
            definition_version=self.definition_version or 0,
            versions=self.versions,
            processor=self.processor,
        )


def before(pos: int) -> Position:
    """Give the position just before every row of that millisecond."""
    return Position(pos, -1)


@lru_cache(10_000)
def rfc3339(milliseconds: int) -> str:
    """Write a time as people and JSON readers expect it, in UTC."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return f"{moment.replace(tzinfo=None).isoformat()}.{milliseconds % 1000:03d}Z"


def _milliseconds(text: str) -> int:
    if "-" not in text[1:] and ":" not in text:
        return _number(text, 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("its time does not read as RFC 3339") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Cut, not rounded: so are the times of rows.
    return _within((moment - _EPOCH) // timedelta(milliseconds=1), 0)


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(f"{text[:_LONGEST]!r} is not a whole number of at most 19 digits")
    return _within(int(text), least)


def _within(number: int, least: int) -> int:
    if not least <= number <= GREATEST:
        raise ValueError(f"{number} is out of range")
    return number
