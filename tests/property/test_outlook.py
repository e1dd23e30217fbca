"""A plan that is kept says at every moment what a plan made anew would say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.looks import Ahead, Look
from tidegate.model.position import START, Block, Offset, OffsetState, Position
from tidegate.tables.definition import Processor
from tidegate.tables.graph import LineageGraph
from tidegate.tables.plan import Facts, make_plan
from tidegate.tables.planner import KeptPlan, keep_plan

from .profile import examples
from .scenarios import scenarios

BEGIN = 1_000
HOLDERS = ("one", "two")
_TIMES = st.integers(BEGIN - 40, BEGIN + 80)
_POSITIONS = st.builds(Position, _TIMES, st.integers(-1, 2))
_VERSIONS = st.integers(0, 3)


def _blocks(draw: st.DrawFn) -> Block | None:
    if draw(st.integers(0, 4)):
        return None
    next = draw(_POSITIONS)
    return Block(START, next, 3, 2, full=False, complete_to=next.pos, definition_version=1)


@st.composite
def _offset(draw: st.DrawFn, topic: str, tables: tuple[str, ...]) -> Offset:
    failures = draw(st.sampled_from([0, 0, 0, 1, 2]))
    away_since = draw(st.one_of(st.none(), st.none(), _TIMES))
    states = [OffsetState.DONE, OffsetState.DONE, OffsetState.NEW, OffsetState.STOPPED]
    return Offset(
        topic,
        draw(_POSITIONS),
        seq=draw(st.sampled_from([2, 1, 0])),
        run=draw(st.one_of(_TIMES, st.none())),
        state=draw(st.sampled_from(states)),
        hostid=draw(st.sampled_from(["", "", *HOLDERS])),
        complete_to=draw(_TIMES),
        failures=failures,
        reason=draw(st.sampled_from(["", "no such column"])),
        away_since=away_since,
        wait=draw(st.sampled_from([1_000, 4_000])) if away_since is not None else 0,
        full=draw(st.booleans()),
        versions={table: draw(_VERSIONS) for table in tables},
        definition_version=draw(st.sampled_from([1, 2, None])),
        stale=draw(st.sampled_from(["", "", "stale"])),
        block=_blocks(draw),
    )


@st.composite
def _look(draw: st.DrawFn, table: str, now: int) -> Look:
    version = draw(_VERSIONS)
    return Look(
        table,
        now + draw(st.sampled_from([0, 0, 1, -5])),
        exists=draw(st.integers(0, 5)) > 0,
        positioned=draw(st.integers(0, 5)) > 0,
        newest=draw(st.one_of(_POSITIONS, st.none())),
        version=version,
        data_version=max(0, version - draw(st.integers(0, 1))),
    )


def _put(facts: Facts, draw: st.DrawFn) -> dict[str, Any]:
    definition = draw(st.sampled_from(list(facts.definitions.values())))
    known = facts.offsets.get(definition.topic)
    if known is not None and draw(st.booleans()):
        # One thing alone moves.
        change = draw(
            st.sampled_from(
                [{"hostid": ""}, {"hostid": "one"}, {"failures": 0}, {"block": None}, {"seq": 3}]
            )
        )
        moved = replace(known, **change)  # type: ignore[arg-type]
    else:
        moved = draw(_offset(definition.topic, definition.listed))
    return {"offsets": {**facts.offsets, definition.topic: moved}}


def _drop(facts: Facts, draw: st.DrawFn) -> dict[str, Any]:
    topic = draw(st.sampled_from(list(facts.definitions)))
    return {"offsets": {name: one for name, one in facts.offsets.items() if name != topic}}


def _see(facts: Facts, draw: st.DrawFn) -> dict[str, Any]:
    table = draw(st.sampled_from(sorted(_tables(facts.definitions))))
    return {"looks": {**facts.looks, table: draw(_look(table, facts.now))}}


def _reach(facts: Facts, draw: st.DrawFn) -> dict[str, Any]:
    topic = draw(st.sampled_from(list(facts.definitions)))
    ahead = {name: one for name, one in facts.ahead.items() if name != topic}
    first = draw(st.one_of(_TIMES, st.none(), st.just(0)))
    return {"ahead": ahead if first == 0 else {**ahead, topic: Ahead(first, 2)}}


def _wish(facts: Facts, draw: st.DrawFn) -> dict[str, Any]:
    some = st.frozensets(st.sampled_from(list(facts.definitions)))
    match draw(st.integers(0, 4)):
        case 0:
            return {"paused": dict.fromkeys(draw(some), "by ann")}
        case 1:
            return {"asked": draw(some)}
        case 2:
            return {"waiting": draw(some)}
        case 3:
            return {"versions": dict.fromkeys(draw(some), draw(st.integers(1, 2)))}
        case _:
            return {"live_holders": draw(st.frozensets(st.sampled_from(HOLDERS)))}


_MOVES: tuple[Callable[[Facts, st.DrawFn], dict[str, Any]], ...] = (
    _put,
    _see,
    _reach,
    _wish,
    _drop,
)


def _tables(definitions: Any) -> set[str]:
    return {name for d in definitions.values() for name in (*d.listed, d.table)}


@st.composite
def _first(draw: st.DrawFn) -> Facts:
    """Facts that any lake might give, and some that none would."""
    made = draw(scenarios(deadly=False)).definitions
    definitions = {
        d.topic: replace(d, repeat=draw(st.sampled_from([0, 10, 40])))
        if d.processor is not Processor.SOURCE
        else d
        for d in made
    }
    offsets = {
        topic: draw(_offset(topic, d.listed))
        for topic, d in definitions.items()
        if draw(st.integers(0, 5))
    }
    looks = {table: draw(_look(table, BEGIN)) for table in sorted(_tables(definitions))}
    ahead = {
        topic: Ahead(draw(st.one_of(_TIMES, st.none())), 2)
        for topic in definitions
        if draw(st.booleans())
    }
    return Facts(definitions, offsets, looks, BEGIN, ahead)


def _later(facts: Facts, milliseconds: int) -> Facts:
    """Let time pass, with a look at everything that finds nothing new."""
    looks = {
        table: look.again(look.looked_at + milliseconds) for table, look in facts.looks.items()
    }
    return replace(facts, now=facts.now + milliseconds, looks=looks)


def _require_the_same(kept: KeptPlan, facts: Facts) -> None:
    whole = make_plan(facts)
    assert kept.due == {verdict.topic for verdict in whole.due}
    assert kept.verdicts(list(whole.verdicts)) == whole.verdicts


@given(_first(), st.data())
@examples(300)
def test_what_is_kept_is_what_a_new_plan_says(first: Facts, data: st.DataObject) -> None:
    net = LineageGraph.of(first.definitions)
    facts, kept = first, keep_plan(first, net, None)
    _require_the_same(kept, facts)
    for _ in range(data.draw(st.integers(1, 12))):
        draw = data.draw
        facts = _later(facts, draw(st.sampled_from([0, 1, 1, 2, 5, 12, 40, -3])))
        for _ in range(draw(st.integers(0, 2))):
            facts = replace(facts, **draw(st.sampled_from(_MOVES))(facts, draw))
        kept = keep_plan(facts, net, kept)
        _require_the_same(kept, facts)


@given(_first())
@examples(100)
def test_nothing_is_missed_while_time_goes_by_alone(first: Facts) -> None:
    net = LineageGraph.of(first.definitions)
    facts, kept = first, keep_plan(first, net, None)
    for _ in range(100):
        facts = _later(facts, 1)
        kept = keep_plan(facts, net, kept)
        assert kept.due == {verdict.topic for verdict in make_plan(facts).due}
