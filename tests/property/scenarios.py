"""Random lakes: who lands what and when, which tables are built of it, and who runs them when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tidegate.model.position import GREATEST, START, Position
from tidegate.tables.definition import Processor, TableDefinition

from .lake import Arrival, Row

BEGIN = 1_000
END = 1_000_000
"""Later than every row: then the writers close their tables."""
CLOSING = "closing"

# The first of a list is what an example shrinks to, and what the generator likes best: so the usual
# comes first, and the rare cases are not the smallest ones.
_FILES = st.sampled_from([3, 4, 5, 6, 2, 1, 0])
_IDS = st.one_of(st.integers(0, 9), st.sampled_from([GREATEST, GREATEST - 1, 2**40]))


@dataclass(frozen=True)
class Source:
    """A landed table: written in order when it has no delay."""

    table: str
    delay: int | None
    positioned: bool
    arrivals: tuple[Arrival, ...]
    made_early: bool
    """It is in the lake, empty, before its first row."""


@dataclass(frozen=True)
class Move:
    """Some time passes, then somebody runs some topics, and may be killed at that."""

    wait: int
    topics: frozenset[str]
    dies_in: int | None = None


@dataclass(frozen=True)
class Scenario:
    sources: tuple[Source, ...]
    definitions: tuple[TableDefinition, ...]
    kinds: tuple[str, ...]
    ticks: tuple[int, ...]
    moves: tuple[Move, ...]


@st.composite
def _in_order(draw: st.DrawFn, table: str) -> tuple[Arrival, ...]:
    """Rows whose positions only grow from commit to commit, late or ahead of time."""
    arrivals: list[Arrival] = []
    time, at = BEGIN, Position(BEGIN - draw(st.integers(0, 20)), -1)
    for number in range(draw(_FILES)):
        time += draw(st.integers(0, 15))
        rows: list[Row] = []
        for _ in range(draw(st.integers(1, 4))):
            step = draw(st.integers(0, 8))
            if step == 0 and rows and draw(st.booleans()):
                pass  # a tie within the commit
            elif step == 0 and at.id < GREATEST:
                at = Position(at.pos, draw(st.integers(at.id + 1, min(at.id + 3, GREATEST))))
            else:
                at = Position(at.pos + max(step, 1), draw(_IDS))
            rows.append(Row(at.pos, at.id, f"{table}/{number}.{len(rows)}"))
        arrivals.append(Arrival(time, table, tuple(rows)))
    return tuple(arrivals)


@st.composite
def _with_delay(draw: st.DrawFn, table: str, delay: int) -> tuple[Arrival, ...]:
    """Rows in any order, none later than the delay."""
    arrivals: list[Arrival] = []
    for number in range(draw(_FILES)):
        time = BEGIN + draw(st.integers(0, 60))
        poses = draw(st.lists(st.integers(time - delay, time + 5), min_size=1, max_size=4))
        rows = tuple(
            Row(pos, draw(_IDS), f"{table}/{number}.{place}") for place, pos in enumerate(poses)
        )
        arrivals.append(Arrival(time, table, rows))
    return tuple(arrivals)


@st.composite
def _source(draw: st.DrawFn, table: str, *, positioned: bool) -> Source:
    delay = draw(st.one_of(st.none(), st.integers(0, 25)))
    rows = _in_order(table) if delay is None else _with_delay(table, delay)
    return Source(table, delay, positioned, draw(rows), draw(st.booleans()))


@st.composite
def _topic(
    draw: st.DrawFn, topic: str, bases: Sequence[str], others: Sequence[str], *, tagged: bool
) -> TableDefinition:
    reload = not tagged and draw(st.sampled_from([False, False, True, False]))
    base = draw(st.sampled_from(bases))
    more = draw(st.lists(st.sampled_from(others), max_size=2, unique=True))
    twist = draw(st.sampled_from(["", "", "drop", "twice"]))
    return TableDefinition(
        topic,
        Processor.RELOAD if reload else Processor.STEP,
        depends_on=(base, *(name for name in more if name != base)),
        delay=draw(st.sampled_from([None, None, 3, 12])),
        maxstep=draw(st.sampled_from([1, 2, 3, 5, 1_000])),
        tagged=tagged,
        vars={twist: draw(st.integers(2, 3))} if twist else {},
    )


@st.composite
def _definitions(draw: st.DrawFn, sources: Sequence[Source]) -> tuple[TableDefinition, ...]:
    """Chains and nets of one to four tables, each of one topic or two."""
    bases = [source.table for source in sources if source.positioned]
    others = [source.table for source in sources]
    made = [TableDefinition(s.table, Processor.SOURCE, delay=s.delay) for s in sources]
    for number in range(draw(st.sampled_from([3, 2, 4, 1]))):
        table = f"fact.t{number}"
        tags = draw(st.sampled_from([[""], ["#a", "#b"], [""]]))
        # Of what was built last, more often than not: that makes chains.
        near = [*bases, *bases[-1:], *bases[-1:]]
        topics = [draw(_topic(f"{table}{tag}", near, others, tagged=len(tags) > 1)) for tag in tags]
        made += topics
        others.append(table)
        if topics[0].processor is Processor.STEP:
            bases.append(table)
    return tuple(made)


@st.composite
def scenarios(draw: st.DrawFn, *, deadly: bool) -> Scenario:
    count = draw(st.sampled_from([2, 3, 1]))
    sources = tuple(
        draw(_source(f"stage.s{number}", positioned=number == 0 or draw(st.integers(0, 4)) > 0))
        for number in range(count)
    )
    definitions = draw(_definitions(sources))
    topics = [d.topic for d in definitions if d.processor is not Processor.SOURCE]
    some = st.frozensets(st.sampled_from(topics), min_size=1)
    dies = st.one_of(st.none(), st.integers(0, 40)) if deadly else st.none()
    move = st.builds(Move, st.integers(0, 25), st.one_of(st.just(frozenset(topics)), some), dies)
    return Scenario(
        sources,
        definitions,
        tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))),
        tuple(draw(st.lists(st.integers(0, 3), max_size=60))),
        tuple(draw(st.lists(move, min_size=3, max_size=6))),
    )


KINDS = ("exact", "exact", "inexact", "unknown")

assert START.pos < BEGIN < END
