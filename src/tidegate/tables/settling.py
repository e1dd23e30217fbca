"""What became of rows that were tried again: judged by key, by position, or by content."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.model.entities import FailedRow
from tidegate.model.position import Position


@dataclass(frozen=True)
class Seen:
    """What a view gives now for a position or key that had failed."""

    position: Position
    hash: int
    failed: str | None = None
    """The check that is not true for it; None when it may pass."""
    entity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settled:
    """What became of the rows that were tried again."""

    rows: tuple[FailedRow, ...]
    """As they will stand, and those that came to light only now."""
    allowed: frozenset[tuple[Position, int]]
    """By position and hash, where positions decide: what is to be written now."""


def settle_keyed(waiting: Iterable[FailedRow], seen: Sequence[Seen], most: int) -> Settled:
    """Judge by key: the newest row of a key speaks for all of it."""
    newest: dict[int, Seen] = {}
    for row in sorted(seen, key=lambda row: row.position):
        newest[row.hash] = row
    rows: list[FailedRow] = []
    for failed in waiting:
        now = newest.get(failed.hash)
        if failed.raised or now is None or now.failed is None:
            rows.append(failed.brought_in())
        else:
            rows.append(replace(failed.tried_again(now.failed, most), entity=now.entity))
    known = {failed.hash for failed in waiting if not failed.raised}
    fresh = [row for row in newest.values() if row.failed is not None and row.hash not in known]
    rows += [_failed(row, 0) for row in fresh]
    return Settled(tuple(rows), frozenset())


def settle_appended(
    waiting: Iterable[FailedRow],
    seen: Iterable[Seen],
    written: Collection[tuple[Position, int]],
    most: int,
    shared: Collection[Position] = (),
) -> Settled:
    """Judge by position: what the table does not hold yet, no more of it than was set aside.

    What the table holds at a position that is shared may have come from another shard.
    """
    by_position: dict[Position, list[FailedRow]] = {}
    for failed in waiting:
        by_position.setdefault(failed.position, []).append(failed)
    given: dict[Position, list[Seen]] = {}
    for row in seen:
        given.setdefault(row.position, []).append(row)
    in_table = {position for position, _ in written}
    rows: list[FailedRow] = []
    allowed: set[tuple[Position, int]] = set()
    for position, failed_rows in by_position.items():
        # What was set aside is not in the table, even if it holds a row that looks the same.
        known = {failed.hash for failed in failed_rows}
        now = given.get(position, [])
        new = [r for r in now if r.hash in known or (position, r.hash) not in written]
        why = ""
        if position in in_table and len(new) > len(failed_rows):
            # Its siblings have changed since: nobody can tell which of these is in the table.
            why = f"the view gives other rows for {position} than those already in the table"
        elif position in shared and len(new) < min(len(now), len(failed_rows)):
            why = f"the table holds the same row for {position}, maybe from another shard"
        if why:
            rows += [failed.tried_again(why, most) for failed in failed_rows]
            continue
        allowed |= {(row.position, row.hash) for row in new if row.failed is None}
        rows += _settle_position(failed_rows, [r for r in new if r.failed is not None], most)
    return Settled(tuple(rows), frozenset(allowed))


def _settle_position(waiting: list[FailedRow], failing: list[Seen], most: int) -> list[FailedRow]:
    rows = _judged(waiting, failing, most)
    known = {failed.hash for failed in waiting}
    tries = max(failed.attempts for failed in waiting)
    # The same row with other content that fails too: it inherits the tries.
    rows += [
        _failed(row, tries).tried_again(row.failed or "", most)
        for row in failing
        if row.hash not in known
    ]
    return rows


def settle_reloaded(waiting: Iterable[FailedRow], seen: Iterable[Seen], most: int) -> Settled:
    """Judge by content: a Reload gives every row again."""
    return Settled(tuple(_judged(waiting, seen, most)), frozenset())


def _judged(waiting: Iterable[FailedRow], seen: Iterable[Seen], most: int) -> list[FailedRow]:
    """Count the try of those that are seen to fail again; the others are in."""
    reasons = {row.hash: row.failed for row in seen if row.failed is not None}
    return [
        failed.tried_again(reasons[failed.hash], most)
        if failed.hash in reasons
        else failed.brought_in()
        for failed in waiting
    ]


def _failed(row: Seen, attempts: int) -> FailedRow:
    return FailedRow(row.position, row.hash, row.entity, row.failed or "", attempts=attempts)
