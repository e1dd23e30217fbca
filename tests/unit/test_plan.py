"""What is due, rule by rule, and the words for what is not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from tidegate.model.duration import HOUR, MINUTE, SECOND
from tidegate.model.looks import Ahead, Look
from tidegate.model.patience import after_failures
from tidegate.model.position import START, Block, Offset, OffsetState, Position, before
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.plan import Facts, Plan, TableVerdict, make_plan

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20.000Z
BASE, OTHER, TOPIC = "stage.orders", "stage.customers", "fact.orders"


def step(topic: str = TOPIC, *depends_on: str, **more: object) -> TableDefinition:
    return replace(
        TableDefinition(topic, Processor.STEP, depends_on=depends_on or (BASE,)),
        **more,  # type: ignore[arg-type]
    )


def reload(topic: str = "mart.orders", *depends_on: str, **more: object) -> TableDefinition:
    return replace(step(topic, *depends_on), processor=Processor.RELOAD, **more)  # type: ignore[arg-type]


def source(table: str, delay: int | None = None) -> TableDefinition:
    return TableDefinition(table, Processor.SOURCE, delay=delay)


def seen(table: str, newest: int | None = None, **more: object) -> Look:
    at = None if newest is None else Position(newest, 5)
    return Look(table, NOW, newest=at)._replace(**more)  # type: ignore[arg-type]


def offset(topic: str = TOPIC, last: int = 0, **more: object) -> Offset:
    at = Position(last, 5) if last else START
    return replace(Offset(topic, at), **more)  # type: ignore[arg-type]


def block(next: int = NOW) -> Block:
    return Block(
        START, Position(next, 7), 42, 1, full=False, complete_to=next, definition_version=1
    )


def plan(
    *parts: TableDefinition | Look | Offset,
    now: int = NOW,
    ahead: Mapping[str, Ahead] | None = None,
    live: frozenset[str] = frozenset(),
    versions: Mapping[str, int] | None = None,
    eager: bool = False,
) -> Plan:
    facts = Facts(
        definitions={part.topic: part for part in parts if isinstance(part, TableDefinition)},
        offsets={part.topic: part for part in parts if isinstance(part, Offset)},
        looks={part.table: part for part in parts if isinstance(part, Look)},
        now=now,
        ahead=ahead or {},
        live_holders=live,
        versions=versions or {},
        eager=eager,
    )
    return make_plan(facts)


def verdict(
    *parts: TableDefinition | Look | Offset, topic: str = TOPIC, **more: object
) -> TableVerdict:
    return plan(*parts, **more).verdicts[topic]  # type: ignore[arg-type]


# --- C and F of what others land


@pytest.mark.parametrize(
    ("entry", "look", "complete_to", "frontier"),
    [
        # Written in order: the newest row says it all.
        ([], seen(BASE, NOW - MINUTE), NOW - MINUTE, Position(NOW - MINUTE, 5)),
        ([source(BASE)], seen(BASE, NOW - MINUTE), NOW - MINUTE, Position(NOW - MINUTE, 5)),
        # With a row in the future it is complete to now, not beyond.
        ([], seen(BASE, NOW + MINUTE), NOW, Position(NOW + MINUTE, 5)),
        ([], seen(BASE), 0, START),
        # With a delay the newest row plays no part.
        ([source(BASE, SECOND)], seen(BASE, 7), NOW - SECOND, before(NOW - SECOND)),
        ([source(BASE, SECOND)], seen(BASE, NOW + MINUTE), NOW - SECOND, before(NOW - SECOND)),
        ([source(BASE, 0)], seen(BASE), NOW, before(NOW)),
        # The time is that of the look, and never beyond that of the plan.
        (
            [source(BASE, SECOND)],
            seen(BASE, 7, looked_at=NOW - MINUTE),
            NOW - MINUTE - SECOND,
            before(NOW - MINUTE - SECOND),
        ),
        (
            [source(BASE, SECOND)],
            seen(BASE, 7, looked_at=NOW + 9),
            NOW - SECOND,
            before(NOW - 1000),
        ),
        # Without a position column nothing can be said but when it was looked at.
        ([], seen(BASE, positioned=False, looked_at=NOW - 9), NOW - 9, START),
    ],
)
def test_how_complete_a_landed_table_is(
    entry: list[TableDefinition], look: Look, complete_to: int, frontier: Position
) -> None:
    state = plan(*entry, step(), look).tables[BASE]
    assert (state.complete_to, state.frontier) == (complete_to, frontier)


def test_what_is_known_of_a_landed_table_does_not_fall_with_a_look() -> None:
    known = Offset(BASE, Position(NOW - SECOND, 9), complete_to=NOW - MINUTE)
    state = plan(step(), seen(BASE, NOW - HOUR), known).tables[BASE]
    assert state.frontier == Position(NOW - SECOND, 9)
    assert state.complete_to == NOW - SECOND


# --- Step


def test_a_new_topic_with_rows_is_due_with_the_limits_of_its_base() -> None:
    found = verdict(step(), seen(BASE, NOW - MINUTE))
    assert found.due
    assert found.limits is not None
    assert found.limits.frontier == Position(NOW - MINUTE, 5)
    assert (found.limits.bound, found.limits.complete_to) == (NOW, NOW - MINUTE)


def test_the_bound_is_the_least_of_delay_and_other_dependencies() -> None:
    entries = (step(TOPIC, BASE, OTHER, delay=SECOND), seen(BASE, NOW - 1))
    late = verdict(*entries, seen(OTHER, NOW - MINUTE))
    assert late.limits is not None
    assert late.limits.bound == late.limits.complete_to == NOW - MINUTE
    early = verdict(*entries, seen(OTHER, NOW))
    assert early.limits is not None
    assert early.limits.bound == early.limits.complete_to == NOW - SECOND


def test_a_topic_that_has_taken_every_row_is_up_to_date() -> None:
    found = verdict(step(), seen(BASE, NOW - MINUTE), offset(last=NOW - MINUTE))
    assert not found.due
    assert found.why == "up to date: no rows of stage.orders after 2023-11-14T22:12:20.000Z"
    assert found.complete_to == NOW - MINUTE


def test_a_base_without_rows() -> None:
    found = verdict(step(), seen(BASE))
    assert (found.due, found.why) == (False, "stage.orders holds no rows yet")


def test_a_dependency_holds_back_and_is_named_with_its_lag() -> None:
    found = verdict(
        step(TOPIC, BASE, OTHER, "stage.countries"),
        seen(BASE, NOW - MINUTE),
        seen(OTHER, NOW - 4 * MINUTE),
        seen("stage.countries", NOW - 2 * MINUTE),
        ahead={TOPIC: Ahead(NOW - 3 * MINUTE, 9)},
    )
    assert not found.due
    assert found.why == (
        "held back by stage.customers, complete to 2023-11-14T22:09:20.000Z, 4 min behind"
    )
    assert (found.held_back_by, found.rows_ahead) == (OTHER, 9)
    assert found.complete_to == NOW - 4 * MINUTE


def test_a_dependency_without_rows_holds_back() -> None:
    found = verdict(step(TOPIC, BASE, OTHER), seen(BASE, NOW - MINUTE), seen(OTHER))
    assert (found.due, found.why) == (
        False,
        "held back by stage.customers, which holds no rows yet",
    )


def test_an_unwaited_table_plays_no_part() -> None:
    assert verdict(step(unwaited=(OTHER,)), seen(BASE, NOW - MINUTE), seen(OTHER)).due


def test_a_base_with_delay_holds_its_own_rows_back() -> None:
    parts = (source(BASE, MINUTE), step(), seen(BASE, NOW - 5))
    found = verdict(*parts, ahead={TOPIC: Ahead(NOW - 30 * SECOND, 3)})
    assert found.why == (
        "held back by stage.orders, complete to 2023-11-14T22:12:20.000Z, 1 min behind"
    )
    assert found.held_back_by == BASE
    assert verdict(*parts, ahead={TOPIC: Ahead(NOW - 2 * MINUTE, 3)}).due


def test_rows_younger_than_the_delay_wait() -> None:
    parts = (step(delay=30 * SECOND), seen(BASE, NOW - SECOND))
    found = verdict(*parts, ahead={TOPIC: Ahead(NOW - SECOND, 1)})
    assert found.why == "the newest rows of stage.orders are younger than its delay of 30 s"
    assert (found.due, found.held_back_by) == (False, None)
    assert found.complete_to == NOW - 30 * SECOND
    assert verdict(*parts, now=NOW + 30 * SECOND, ahead={TOPIC: Ahead(NOW - SECOND, 1)}).due


@pytest.mark.parametrize(
    "other", [seen(OTHER, positioned=False), seen(OTHER, NOW + HOUR)], ids=["no position", "future"]
)
def test_rows_in_the_future_wait_for_their_time_and_for_no_table(other: Look) -> None:
    parts = (step(TOPIC, BASE, OTHER), seen(BASE, NOW + MINUTE), other)
    found = verdict(*parts, ahead={TOPIC: Ahead(NOW + SECOND, 1)})
    assert found.why == "the newest rows of stage.orders lie in the future"
    assert (found.due, found.held_back_by, found.complete_to) == (False, None, NOW)


def test_a_row_at_the_bound_waits_and_one_before_it_does_not() -> None:
    parts = (step(TOPIC, BASE, OTHER), seen(BASE, NOW - 5), seen(OTHER, NOW - MINUTE))
    assert not verdict(*parts, ahead={TOPIC: Ahead(NOW - MINUTE)}).due
    assert verdict(*parts, ahead={TOPIC: Ahead(NOW - MINUTE - 1)}).due


def test_what_lies_ahead_unknown_may_be_due() -> None:
    assert verdict(step(), seen(BASE, NOW - 5), offset(last=NOW - MINUTE)).due


def test_nothing_ahead_although_the_base_is_ahead() -> None:
    found = verdict(step(), seen(BASE, NOW - 5), offset(last=NOW - 9), ahead={TOPIC: Ahead(None)})
    assert (found.due, found.complete_to) == (False, NOW - 5)


def test_a_base_without_position_cannot_be_stepped() -> None:
    found = verdict(step(base_pos="ms", base_id="seq"), seen(BASE, positioned=False))
    assert (found.due, found.broken) == (False, True)
    assert found.why == "stage.orders has no columns ms and seq to carry a position"


def test_complete_to_stands_before_the_first_row_that_is_not_taken() -> None:
    parts = (step(), seen(BASE, NOW - MINUTE), offset(last=NOW - HOUR, complete_to=NOW - HOUR))
    due = verdict(*parts, ahead={TOPIC: Ahead(NOW - 2 * MINUTE)})
    assert (due.due, due.complete_to) == (True, NOW - 2 * MINUTE)
    # And it stays there while the block that takes it is open.
    opened = replace(parts[2], block=block(NOW - MINUTE))
    held = verdict(*parts[:2], opened, ahead={TOPIC: Ahead(NOW - 2 * MINUTE)})
    assert (held.due, held.complete_to) == (True, NOW - 2 * MINUTE)
    unknown = verdict(*parts[:2], opened)
    assert (unknown.due, unknown.complete_to) == (True, NOW - HOUR)


# --- When


def test_repeat_is_waited_for_and_its_default_named() -> None:
    parts = (seen(BASE, NOW - 5), offset(last=NOW - HOUR, run=NOW - MINUTE))
    found = verdict(step(), *parts)
    assert not found.due
    assert found.why == "runs again at 2023-11-14T23:12:20.000Z (repeat is 1 h, the default)"
    found = verdict(step(repeat=2 * MINUTE), *parts)
    assert found.why == "runs again at 2023-11-14T22:14:20.000Z (repeat is 2 min)"
    assert verdict(step(repeat=MINUTE), *parts).due
    assert verdict(step(), *parts, eager=True).due


def test_a_topic_that_is_held_back_says_so_whatever_its_repeat() -> None:
    parts = (seen(BASE, NOW - MINUTE), seen(OTHER), offset(last=NOW - HOUR, run=NOW - 1))
    assert "held back by stage.customers" in verdict(step(TOPIC, BASE, OTHER), *parts).why


def test_after_a_full_block_the_next_is_due_at_once() -> None:
    full = offset(last=NOW - HOUR, run=NOW, full=True)
    assert verdict(step(), seen(BASE, NOW - 5), full).due


@pytest.mark.parametrize(
    ("failures", "repeat", "wait"),
    [
        (1, HOUR, SECOND),
        (2, HOUR, 2 * SECOND),
        (3, HOUR, 4 * SECOND),
        (9, HOUR, 256 * SECOND),
        (10, HOUR, 5 * MINUTE),
        (10_000, HOUR, 5 * MINUTE),
        (9, 2 * MINUTE, 2 * MINUTE),
        # The freshest topics have not the least patience.
        (9, 3 * SECOND, MINUTE),
        (9, 0, MINUTE),
        (2, 0, 2 * SECOND),
    ],
)
def test_the_wait_after_failures(failures: int, repeat: int, wait: int) -> None:
    assert after_failures(failures, repeat) == wait
    failed = offset(run=NOW - wait, failures=failures, state=OffsetState.FAILED, reason="no")
    assert verdict(step(repeat=repeat), seen(BASE, NOW - 5), failed).due
    assert not verdict(step(repeat=repeat), seen(BASE, NOW - 5), failed, now=NOW - 1).due


def test_a_failure_over_a_limit_waits_as_long_as_it_says() -> None:
    failed = offset(run=NOW, failures=1, wait=5 * MINUTE, state=OffsetState.FAILED, reason="many")
    found = verdict(step(repeat=SECOND), seen(BASE, NOW - 5), failed)
    assert found.why == "failed once (many); tried again at 2023-11-14T22:18:20.000Z"


def test_an_outage_waits_whatever_repeat_says_and_goes_on_by_itself() -> None:
    away = offset(
        run=NOW,
        away_since=NOW - MINUTE,
        wait=4 * MINUTE,
        failures=2,
        state=OffsetState.AWAY,
        reason="disk full",
    )
    definition, looks = step(repeat=SECOND), seen(BASE, NOW - 5)
    found = verdict(definition, looks, away)
    assert not found.due
    assert found.why == (
        "away since 2023-11-14T22:12:20.000Z (disk full); tried again at 2023-11-14T22:17:20.000Z,"
        " and goes on by itself when that is over"
    )
    again = verdict(definition, looks, replace(away, run=NOW - 4 * MINUTE))
    assert again.due
    assert again.why.endswith(
        "; before that it was away since 2023-11-14T22:12:20.000Z (disk full)"
    )
    assert verdict(definition, looks, away, eager=True).due


def test_what_went_wrong_is_told_while_the_topic_is_tried_again() -> None:
    failed = offset(run=NOW - HOUR, failures=1, state=OffsetState.FAILED, reason="no such column")
    looks = seen(BASE, NOW - 5)
    assert verdict(step(), looks, failed).why.endswith(
        "before that it failed once (no such column)"
    )
    held = replace(failed, hostid="host-1", claimed_at=NOW)
    found = verdict(step(), looks, held, live=frozenset({"host-1"}))
    assert found.why.startswith("held by host-1 since")
    assert found.why.endswith("before that it failed once (no such column)")


def test_a_failed_topic_says_why_and_when() -> None:
    failed = offset(run=NOW, failures=3, state=OffsetState.FAILED, reason="no such column")
    found = verdict(step(), seen(BASE, NOW - 5), failed)
    assert found.why == "failed 3 times (no such column); tried again at 2023-11-14T22:13:24.000Z"
    once = verdict(step(), seen(BASE, NOW - 5), replace(failed, failures=1))
    assert once.why == "failed once (no such column); tried again at 2023-11-14T22:13:21.000Z"
    assert verdict(step(), seen(BASE, NOW - 5), failed, eager=True).due


def test_a_stopped_topic_waits_for_a_person_even_with_nothing_to_do() -> None:
    stopped = offset(state=OffsetState.STOPPED, reason="the table was deleted")
    for look in (seen(BASE, NOW - 5), seen(BASE)):
        found = verdict(step(), look, stopped, eager=True)
        assert not found.due
        assert found.why == (
            "stopped: the table was deleted; mend it, then `tidegate resume fact.orders`"
        )


def test_a_topic_is_held_while_its_holder_lives() -> None:
    held = offset(hostid="h:1:a", claimed_at=NOW, run=NOW, state=OffsetState.RUNNING)
    alive = verdict(step(), seen(BASE, NOW - 5), held, live=frozenset({"h:1:a"}), eager=True)
    assert (alive.due, alive.why) == (False, "held by h:1:a since 2023-11-14T22:13:20.000Z")
    # What a dead one began is not done: it is due at once, although its claim has moved `run`.
    assert verdict(step(), seen(BASE, NOW - 5), held).due


def test_topics_of_one_table_wait_for_their_lane() -> None:
    a, b = step("fact.all#a", BASE), step("fact.all#b", OTHER)
    held = offset("fact.all#a", hostid="h:1:a", claimed_at=NOW)
    looks = (seen(BASE, NOW - 5), seen(OTHER, NOW - 5))
    found = plan(a, b, *looks, held, live=frozenset({"h:1:a"})).verdicts
    assert not found["fact.all#a"].due
    assert not found["fact.all#b"].due
    assert found["fact.all#b"].why == (
        "waits for fact.all#a, which writes the same table, held by h:1:a since"
        " 2023-11-14T22:13:20.000Z"
    )
    assert plan(a, b, *looks, held).verdicts["fact.all#b"].due


@pytest.mark.parametrize(
    "look",
    [seen(BASE), seen(BASE, exists=False), seen(BASE, positioned=False), seen(BASE, NOW - 5)],
    ids=["empty", "gone", "no position", "there"],
)
def test_a_declared_block_is_always_finished(look: Look) -> None:
    opened = offset(run=NOW, block=block(), full=False)
    found = verdict(step(), look, opened)
    assert (found.due, found.limits, found.rows_ahead) == (True, None, 42)
    assert found.why == "has to finish the block up to (1700000000000, 7)"
    reloaded = verdict(reload(), look, replace(opened, topic="mart.orders"), topic="mart.orders")
    assert (reloaded.due, reloaded.why) == (True, "has to finish its reload")


def test_a_declared_block_that_failed_waits_like_any_other() -> None:
    opened = offset(run=NOW, block=block(), failures=1, reason="no")
    assert not verdict(step(), seen(BASE, NOW - 5), opened).due
    assert verdict(step(), seen(BASE, NOW - 5), opened, now=NOW + SECOND).due


# --- Missing tables


def test_a_declared_source_that_never_came_is_waited_for() -> None:
    found = verdict(source(BASE), step(), seen(BASE, exists=False))
    assert (found.due, found.broken) == (False, False)
    assert found.why == "waits for stage.orders, which is not in the lake yet"


def test_a_table_that_nobody_declared_and_nobody_saw_is_a_fault() -> None:
    assert verdict(step(), seen(BASE, exists=False)).broken
    assert verdict(step()).broken


def test_a_table_that_was_there_and_is_gone_is_a_fault() -> None:
    known = Offset(OTHER, Position(NOW - HOUR, 5))
    parts = (source(OTHER), step(TOPIC, BASE, OTHER), seen(BASE, 5), seen(OTHER, exists=False))
    found = verdict(*parts, known)
    assert (found.due, found.broken, found.held_back_by) == (False, True, OTHER)
    assert found.why == (
        "stage.customers is gone from the lake; put it back, or take it out of depends_on"
    )


# --- Reload


def test_a_reload_is_due_when_it_never_ran() -> None:
    found = verdict(reload(), seen(BASE, NOW - MINUTE), topic="mart.orders")
    assert (found.due, found.why) == (True, "due: never loaded")
    assert found.limits is not None
    assert found.limits.complete_to == NOW - MINUTE


@pytest.mark.parametrize(
    ("look", "why"),
    [
        ({"version": 7, "data_version": 7}, ""),
        ({"version": 9, "data_version": 7}, ""),  # compaction alone
        ({"version": 9, "data_version": 8}, "due: stage.orders changed"),
        ({"version": 2, "data_version": 2}, "due: stage.orders changed"),  # made anew
        ({"version": 2, "data_version": 2, "looked_at": NOW - 2 * HOUR}, ""),  # before the load
    ],
)
def test_a_reload_is_due_when_its_data_changed(look: dict[str, int], why: str) -> None:
    loaded = offset("mart.orders", seq=3, run=NOW - HOUR, versions={BASE: 7})
    found = verdict(reload(), seen(BASE, NOW - MINUTE, **look), loaded, topic="mart.orders")
    assert found.due == bool(why)
    assert found.why == (
        why or "up to date: nothing that it reads has changed since 2023-11-14T21:13:20.000Z"
    )


def test_a_reload_looks_at_unwaited_tables_and_at_new_ones() -> None:
    entry = reload("mart.orders", BASE, unwaited=(OTHER,))
    loaded = offset("mart.orders", seq=3, run=NOW - HOUR, versions={BASE: 7, OTHER: 1})
    looks = (seen(BASE, 5, version=7, data_version=7), seen(OTHER, version=2, data_version=2))
    found = verdict(entry, *looks, loaded, topic="mart.orders")
    assert (found.due, found.why) == (True, "due: stage.customers changed")
    unread = replace(loaded, versions={BASE: 7})
    assert verdict(entry, *looks, unread, topic="mart.orders").due
    away = (looks[0], seen(OTHER, exists=False))
    assert not verdict(entry, *away, unread, topic="mart.orders").due


def test_a_reload_is_due_when_its_definition_changed() -> None:
    loaded = offset("mart.orders", seq=3, run=NOW - HOUR, versions={BASE: 7}, definition_version=1)
    look = seen(BASE, 5, version=7, data_version=7)
    same = verdict(reload(), look, loaded, topic="mart.orders", versions={"mart.orders": 1})
    assert not same.due
    other = verdict(reload(), look, loaded, topic="mart.orders", versions={"mart.orders": 2})
    assert (other.due, other.why) == (True, "due: its definition changed")


def test_a_changed_reload_waits_for_its_repeat() -> None:
    loaded = offset("mart.orders", seq=3, run=NOW - MINUTE, versions={BASE: 7})
    look = seen(BASE, 5, version=8, data_version=8)
    found = verdict(reload(), look, loaded, topic="mart.orders")
    assert (found.due, found.why[:10]) == (False, "runs again")


def test_an_unchanged_reload_is_as_complete_as_what_it_reads() -> None:
    loaded = offset("mart.orders", seq=3, run=NOW - HOUR, versions={BASE: 7, OTHER: 7})
    entry = reload("mart.orders", BASE, OTHER, delay=SECOND)
    looks = [seen(BASE, NOW - MINUTE, version=7, data_version=7), seen(OTHER, NOW + 5, version=7)]
    found = verdict(entry, *looks, loaded, topic="mart.orders")
    assert (found.complete_to, found.held_back_by) == (NOW - MINUTE, BASE)
    looks[0] = seen(BASE, NOW, version=7, data_version=7)
    found = verdict(entry, *looks, loaded, topic="mart.orders")
    assert (found.complete_to, found.held_back_by) == (NOW - SECOND, None)


# --- Tables of several topics, and chains


def tagged(*offsets: Offset, **more: object) -> Plan:
    return plan(
        step("fact.all#quick", BASE),
        step("fact.all#slow", OTHER),
        step("mart.sums", "fact.all"),
        seen(BASE, NOW - 5),
        seen(OTHER, NOW - 5),
        *offsets,
        **more,  # type: ignore[arg-type]
    )


def test_a_table_is_as_complete_as_its_slowest_topic() -> None:
    found = tagged(
        offset("fact.all#quick", NOW - 5, complete_to=NOW - 5),
        offset("fact.all#slow", NOW - HOUR, complete_to=NOW - HOUR + 3),
        ahead={"fact.all#slow": Ahead(NOW - HOUR + 3)},
    )
    state = found.tables["fact.all"]
    assert (state.complete_to, state.frontier) == (NOW - HOUR + 3, before(NOW - HOUR + 3))
    assert (state.by, state.newest) == ("fact.all#slow", Position(NOW - 5, 5))


def test_a_paused_topic_holds_back_what_stands_on_its_table_and_is_named() -> None:
    found = tagged(
        offset("fact.all#quick", NOW - 5, complete_to=NOW - 5),
        offset("fact.all#slow", NOW - HOUR, complete_to=NOW - HOUR, state=OffsetState.STOPPED),
        offset("mart.sums", NOW - HOUR, complete_to=NOW - HOUR),
        ahead={"fact.all#slow": Ahead(NOW - HOUR), "mart.sums": Ahead(NOW - MINUTE)},
    )
    assert found.verdicts["mart.sums"].why == (
        "held back by fact.all#slow, complete to 2023-11-14T21:13:20.000Z, 1 h behind"
    )
    assert found.verdicts["mart.sums"].held_back_by == "fact.all"
    assert found.chain("mart.sums") == ["mart.sums", "fact.all#slow"]


def test_a_topic_that_never_ran_holds_its_table_back() -> None:
    found = tagged(
        offset("fact.all#quick", NOW - 5, complete_to=NOW - 5),
        ahead={"mart.sums": Ahead(NOW - MINUTE), "fact.all#slow": Ahead(1)},
    )
    assert not found.verdicts["mart.sums"].due
    assert "held back by fact.all#slow, complete to 1970" in found.verdicts["mart.sums"].why


def test_the_chain_leads_down_to_the_table_at_fault() -> None:
    found = plan(
        step("fact.a", BASE, OTHER),
        step("fact.b", "stage.more", "fact.a"),
        step("fact.c", "stage.more", "fact.b"),
        seen(BASE, NOW - 5),
        seen(OTHER, NOW - HOUR),
        seen("stage.more", NOW - 5),
        offset("fact.a", NOW - 2 * HOUR),
        ahead={topic: Ahead(NOW - MINUTE) for topic in ("fact.a", "fact.b", "fact.c")},
    )
    assert found.chain("fact.c") == ["fact.c", "fact.b", "fact.a", OTHER]
    assert found.chain(OTHER) == [OTHER]
    assert found.due == []


def test_verdicts_stand_in_the_order_of_dependence() -> None:
    found = plan(step("z.first", BASE), step("a.last", "z.first"), seen(BASE, NOW - 5))
    assert list(found.verdicts) == ["z.first", "a.last"]
    assert [each.topic for each in found.due] == ["z.first"]


def test_complete_to_goes_down_a_chain_without_any_execution() -> None:
    names = [f"fact.t{number}" for number in range(5)]
    entries = [step(name, base) for name, base in zip(names, [BASE, *names], strict=False)]
    found = plan(source(BASE, MINUTE), *entries, seen(BASE))
    assert [found.tables[name].complete_to for name in names] == [NOW - MINUTE] * 5
    assert found.tables[names[-1]].frontier == before(NOW - MINUTE)
    assert not found.due
    # So what waits for the last of them goes on, once it is there to be read.
    entries += [source(BASE, MINUTE), step(TOPIC, OTHER, names[-1])]
    looks = (seen(BASE), seen(OTHER, NOW - HOUR))
    waits = verdict(*entries, *looks)
    assert (waits.due, waits.why) == (False, "waits for fact.t4, which is not built yet")
    assert verdict(*entries, *looks, offset(names[-1], seq=1)).due


def test_a_reload_waits_for_what_is_not_built_yet() -> None:
    entries = (step(TOPIC, BASE), reload("mart.orders", TOPIC), seen(BASE))
    found = verdict(*entries, topic="mart.orders")
    assert (found.due, found.broken) == (False, False)
    assert found.why == "waits for fact.orders, which is not built yet"
    assert verdict(*entries, offset(seq=1), topic="mart.orders").due


def test_the_same_facts_give_the_same_plan() -> None:
    assert tagged() == tagged()


def test_ten_thousand_topics_are_planned_in_a_moment() -> None:
    facts = many_topics(10_000)
    spent: list[float] = []
    for _ in range(3):
        begin = time.process_time()
        made = make_plan(facts)
        spent.append(time.process_time() - begin)
    assert len(made.verdicts) == 10_000
    assert 0 < len(made.due) < 10_000
    print(f"10,000 topics planned in {min(spent) * 1000:.0f} ms")
    assert min(spent) < 2.5


def many_topics(count: int) -> Facts:
    """Chains of five, some with a second dependency, one in fifty ending with a Reload."""
    random = Random(1)
    definitions: dict[str, TableDefinition] = {}
    offsets: dict[str, Offset] = {}
    looks: dict[str, Look] = {}
    ahead: dict[str, Ahead] = {}
    chains = count // 5
    for chain in range(chains):
        base = f"stage.s{chain}"
        looks[base] = seen(base, NOW - random.randrange(HOUR), version=3, data_version=3)
        for depth in range(5):
            topic = f"fact.t{chain}_{depth}"
            other = (f"stage.s{random.randrange(chains)}",) if random.random() < 0.5 else ()
            make = reload if depth == 4 and chain % 10 == 0 else step
            definitions[topic] = make(topic, base, *other, delay=random.choice([None, SECOND]))
            if random.random() < 0.9:
                offsets[topic] = offset(
                    topic,
                    NOW - random.randrange(2 * HOUR),
                    seq=4,
                    run=NOW - random.randrange(2 * HOUR),
                    complete_to=NOW - 2 * HOUR,
                    versions=dict.fromkeys((base, *other), 3),
                )
            if random.random() < 0.5:
                ahead[topic] = Ahead(NOW - random.randrange(HOUR), 5)
            base = topic
    return Facts(definitions, offsets, looks, NOW, ahead)


@pytest.mark.parametrize("failures", [0, 1])
def test_a_run_that_lies_far_ahead_of_the_clock_is_not_waited_for(failures: int) -> None:
    # Whoever ran it had a clock that was an hour ahead, or ours was set back.
    parts = (step(repeat=2 * MINUTE), seen(BASE, NOW - 5))
    far = offset(last=NOW - HOUR, run=NOW + HOUR, failures=failures)
    assert verdict(*parts, far).due
    near = offset(last=NOW - HOUR, run=NOW + 100, failures=failures)
    assert not verdict(*parts, near).due
