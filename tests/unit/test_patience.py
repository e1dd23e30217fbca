"""How long a flow is left alone: by outages without end, by failures in measure."""

from __future__ import annotations

from dataclasses import replace

from tidegate.model.duration import MINUTE, SECOND
from tidegate.model.patience import LONGEST_WAIT, while_away
from tidegate.model.position import START, Offset


def test_an_outage_is_waited_out_longer_each_time_and_never_given_up() -> None:
    held: Offset = Offset("fact.orders", START)
    waits = []
    for _ in range(1000):
        waits.append(while_away(held))
        held = replace(held, away_since=1, wait=waits[-1])
    assert waits[:4] == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]
    assert waits[8:10] == [256 * SECOND, 5 * MINUTE]
    assert set(waits[9:]) == {LONGEST_WAIT}


def test_the_wait_of_a_failure_before_it_plays_no_part() -> None:
    assert while_away(Offset("fact.orders", START, wait=LONGEST_WAIT)) == SECOND
