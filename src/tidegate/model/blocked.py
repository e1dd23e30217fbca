"""What keeps a topic from running whatever its data: people, other holders, and the clock."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.model.duration import MINUTE, SECOND, format_duration
from tidegate.model.execution import Offset, OffsetState
from tidegate.model.facts import Facts
from tidegate.model.lineage import Definition
from tidegate.model.position import GREATEST, rfc3339

LONGEST_BACKOFF = 5 * MINUTE

Told = str | tuple[Callable[..., str], *tuple[object, ...]]
"""A sentence, or what it is made of: few of a plan's sentences are ever read."""

_UNBLOCKED: tuple[Told, int] = "", GREATEST


def blocked(
    definition: Definition, offset: Offset, lane: Offset | None, facts: Facts
) -> tuple[Told, int]:
    """Say what keeps the topic from running at all, whatever its data, and until when.

    Empty if nothing does.
    """
    if offset.topic in facts.paused:
        by = facts.paused[offset.topic]
        return f"paused {by}; `tidegate resume {offset.topic}` ends that", GREATEST
    if offset.state is OffsetState.STOPPED:
        mend = f"mend it, then `tidegate resume {offset.topic}`"
        return f"stopped: {offset.reason}; {mend}", GREATEST
    if offset.hostid and offset.hostid in facts.live_holders:
        return f"held {_holder(offset)}", GREATEST
    if lane is not None:
        why = f"waits for {lane.topic}, which writes the same table, held {_holder(lane)}"
        return why, GREATEST
    if facts.eager or offset.topic in facts.asked or offset.run is None:
        return _UNBLOCKED
    repeat = definition.repeat_or_default
    if offset.failures:
        wait = backoff(offset.failures, repeat)
        again = offset.run + wait
        rests = _rests(offset.run, wait, facts.now)
        return ((_failed, offset, again), again) if rests else _UNBLOCKED
    # A holder that died has moved `run` by its claim, and nothing else: what it began is not done.
    begun = offset.full or offset.block is not None or offset.hostid
    due_at, rests = offset.run + repeat, _rests(offset.run, repeat, facts.now) and not begun
    return ((_resting, definition, due_at), due_at) if rests else _UNBLOCKED


def _rests(run: int, wait: int, now: int) -> bool:
    """Tell whether a topic that ran then has to wait; not by a clock that is far ahead of ours."""
    return now - wait < run <= now + wait


def _failed(offset: Offset, again: int) -> str:
    times = "once" if offset.failures == 1 else f"{offset.failures} times"
    return f"failed {times} ({offset.reason}); tried again at {rfc3339(again)}"


def _resting(definition: Definition, due_at: int) -> str:
    default = ", the default" if definition.repeat is None else ""
    every = format_duration(definition.repeat_or_default)
    return f"runs again at {rfc3339(due_at)} (repeat is {every}{default})"


def _holder(offset: Offset) -> str:
    return f"by {offset.hostid} since {rfc3339(offset.claimed_at or 0)}"


def backoff(failures: int, repeat: int) -> int:
    """Give the wait after so many failures in a row: 1 s, 2 s, 4 s … at most five minutes."""
    return min(SECOND << min(failures - 1, 20), max(repeat, SECOND), LONGEST_BACKOFF)
