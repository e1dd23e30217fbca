"""Start and stop: whoever waits hears of the end, also who comes after it was asked for."""

from __future__ import annotations

from tidegate.control.lifecycle import Lifecycle


def test_all_are_woken_each_time_the_end_is_asked_for() -> None:
    life, heard = Lifecycle(), list[str]()
    life.on_stop(lambda: heard.append("a"))
    life.on_stop(lambda: heard.append("b"))
    assert not life.stopping
    life.stop()
    assert (life.stopping, life.in_a_hurry, heard) == (True, False, ["a", "b"])
    life.stop()
    assert (life.in_a_hurry, heard) == (True, ["a", "b", "a", "b"])


def test_one_who_comes_late_is_woken_at_once() -> None:
    # As a worker whose parent died, or that was told to end, while its Spark was starting.
    life, heard = Lifecycle(), list[str]()
    life.stop()
    life.on_stop(lambda: heard.append("late"))
    assert heard == ["late"]
