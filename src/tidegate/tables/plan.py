"""Step 1, plan: what is due, and for every other topic what holds it back. A pure function.

Two times carry all of it. C(x), complete_to: every row of x with a smaller pos has arrived.
F(x), the frontier: no row at or below that position will come any more. Neither ever falls.

    landed, no position     C = time of the look
    landed, with delay      C = time of the look − delay                 F = (C, −1)
    landed, in order        C = min(pos of its newest row, now)          F = its newest row
    a topic t on base b     C = min(bound, C(b)) once nothing eligible is left
                            F = max(last, (C, −1))
                            bound = min(now − delay, C of every other dependency)
    a table of many topics  the least C and F of its topics

A row of b is eligible for t when last < (pos, id) ≤ F(b) and pos < bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

from tidegate.model.duration import format_duration
from tidegate.model.looks import Ahead, Look
from tidegate.model.patience import after_failures
from tidegate.model.position import GREATEST, START, Offset, OffsetState, Position, before, rfc3339
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.graph import order


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a plan looks at."""

    definitions: Mapping[str, TableDefinition]
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
    ordered: Sequence[TableDefinition] = ()
    """The definitions, each behind those it waits for; found out where it is not given."""


Sentence = str | tuple[Callable[..., str], *tuple[object, ...]]
"""A sentence, or what it is made of: few of a plan's sentences are ever read."""
_UNBLOCKED: tuple[Sentence, int] = "", GREATEST


def blocked(
    definition: TableDefinition, offset: Offset, lane: Offset | None, facts: Facts
) -> tuple[Sentence, int]:
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
        held = f"held {_holder(offset)}"
        return (_in_spite, held, offset) if _troubled(offset) else held, GREATEST
    if lane is not None:
        why = f"waits for {lane.topic}, which writes the same table, held {_holder(lane)}"
        return why, GREATEST
    if facts.eager or offset.topic in facts.asked or offset.run is None:
        return _UNBLOCKED
    repeat = definition.repeat_or_default
    if offset.away_since is not None or offset.failures:
        away = offset.away_since is not None
        wait = offset.wait if away else offset.wait or after_failures(offset.failures, repeat)
        again = offset.run + wait
        rests = _rests(offset.run, wait, facts.now)
        return ((_tried_again, offset, again), again) if rests else _UNBLOCKED
    # A holder that died has moved `run` by its claim, and nothing else: what it began is not done.
    begun = offset.full or offset.block is not None or offset.hostid
    due_at, rests = offset.run + repeat, _rests(offset.run, repeat, facts.now) and not begun
    return ((_resting, definition, due_at), due_at) if rests else _UNBLOCKED


def _rests(run: int, wait: int, now: int) -> bool:
    """Tell whether a topic that ran then has to wait; not by a clock that is far ahead of ours."""
    return now - wait < run <= now + wait


def _troubled(offset: Offset) -> str:
    """Say what is the matter; empty when nothing is."""
    if offset.away_since is not None:
        return f"away since {rfc3339(offset.away_since)} ({offset.reason})"
    if not offset.failures or not offset.reason:
        return ""
    times = "once" if offset.failures == 1 else f"{offset.failures} times"
    return f"failed {times} ({offset.reason})"


def _tried_again(offset: Offset, again: int) -> str:
    by_itself = "" if offset.away_since is None else ", and goes on by itself when that is over"
    return f"{_troubled(offset)}; tried again at {rfc3339(again)}{by_itself}"


def _in_spite(sentence: Sentence, offset: Offset) -> str:
    """Say what holds a topic, or makes it due, and what went wrong before that."""
    return f"{_told(sentence)}; before that it {_before_that(offset)}"


def _before_that(offset: Offset) -> str:
    was = "was " if offset.away_since is not None else ""
    return f"{was}{_troubled(offset)}"


def _told(sentence: Sentence) -> str:
    if isinstance(sentence, str):
        return sentence
    write, *about = sentence
    return write(*about)


def _resting(definition: TableDefinition, due_at: int) -> str:
    default = ", the default" if definition.repeat is None else ""
    every = format_duration(definition.repeat_or_default)
    return f"runs again at {rfc3339(due_at)} (repeat is {every}{default})"


def _holder(offset: Offset) -> str:
    return f"by {offset.hostid} since {rfc3339(offset.claimed_at or 0)}"


@dataclass(frozen=True)
class Limits:
    """What the plan allows an execution to take, and what it may say afterwards."""

    as_of: int
    """The time at which was planned, in milliseconds."""
    frontier: Position
    """No row of the base at or below it will come any more."""
    bound: int
    """Rows from this time on have to wait."""
    complete_to: int
    """complete_to of the topic once every eligible row is taken."""
    retry: bool = False
    """Rows that failed may pass by now, even where there are no new ones."""


def with_limits(limits: Limits | None) -> dict[str, Any]:
    """Say in an execution's configuration what it may take."""
    if limits is None:
        return {}
    return {
        "limits": {
            "as_of": limits.as_of,
            "frontier": [limits.frontier.pos, limits.frontier.id],
            "bound": limits.bound,
            "retry": limits.retry,
            "complete_to": limits.complete_to,
        }
    }


def limits_of(configuration: Mapping[str, Any]) -> Limits | None:
    """Read what `with_limits` wrote; None when the execution is to finish an open block."""
    given = configuration.get("limits")
    if given is None:
        return None
    return Limits(
        as_of=given["as_of"],
        frontier=Position(*given["frontier"]),
        bound=given["bound"],
        complete_to=given["complete_to"],
        retry=given["retry"],
    )


class TableState(NamedTuple):
    """C and F of a table, and who is to blame for them."""

    complete_to: int
    frontier: Position
    newest: Position | None
    exists: bool = True
    positioned: bool = True
    unread: int = 0
    by: str = ""
    """The topic with the least C, where topics build the table."""
    trouble: str = ""
    """Why it cannot be read; whoever needs it waits, and nobody else."""


class TableVerdict(NamedTuple):
    """What the plan says of one topic."""

    topic: str
    due: bool
    reason: Sentence
    complete_to: int
    held_back_by: str | None = None
    """The table that keeps it from being fresher; None when nothing but time does."""
    limits: Limits | None = None
    broken: bool = False
    """It cannot run although it should: something that it had is gone."""
    away: bool = False
    """It is broken for as long as the lake cannot be read."""
    rows_ahead: int = 0
    not_before: int = GREATEST
    """Of one that is not due: until then it cannot be, unless something else than time moves."""

    @property
    def why(self) -> str:
        """Say in words what makes the topic due, or what holds it back."""
        return _told(self.reason)


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdicts in the order of dependence, and the state of every table."""

    verdicts: Mapping[str, TableVerdict]
    tables: Mapping[str, TableState]
    now: int

    @property
    def due(self) -> list[TableVerdict]:
        return [verdict for verdict in self.verdicts.values() if verdict.due]

    def chain(self, topic: str) -> list[str]:
        """Follow what holds a topic back, down to the table at fault."""
        chain: list[str] = []
        at: str | None = topic
        while at is not None and at not in chain:
            chain.append(at)
            verdict = self.verdicts.get(at)
            table = verdict.held_back_by if verdict else None
            at = None if table is None else (self.tables[table].by or table)
        return chain


def make_plan(facts: Facts) -> Plan:
    """Decide what is due now; the same facts always give the same plan."""
    tables: dict[str, TableState] = {}
    verdicts: dict[str, TableVerdict] = {}
    built: dict[str, list[tuple[TableVerdict, Offset]]] = {}
    lanes = _lanes(facts)
    for definition in facts.ordered or order(facts.definitions.values()):
        if definition.processor is Processor.SOURCE:
            continue
        for dependency in definition.depends_on:
            if dependency not in tables:
                tables[dependency] = (
                    _built(built[dependency]) if dependency in built else _landed(dependency, facts)
                )
        table = definition.table
        offset = facts.offsets.get(definition.topic) or Offset(definition.topic, START)
        verdict = _verdict(definition, offset, tables, lanes.get(table), facts)
        if offset.stale:
            verdict = verdict._replace(reason=f"{verdict.why}; {offset.stale}")
        verdicts[definition.topic] = verdict
        built.setdefault(table, []).append((verdict, offset))
    for table, topics in built.items():
        if table not in tables:
            tables[table] = _built(topics)
    return Plan(verdicts, tables, facts.now)


def _lanes(facts: Facts) -> dict[str, Offset]:
    """Give, by table, a topic of it that somebody works on now: one lane a table."""
    if not facts.live_holders:
        return {}
    return {
        facts.definitions[topic].table: offset
        for topic, offset in facts.offsets.items()
        if offset.hostid in facts.live_holders and topic in facts.definitions
    }


def _landed(table: str, facts: Facts) -> TableState:
    look = facts.looks.get(table)
    source = facts.definitions.get(table)
    known = facts.offsets.get(table) or Offset(table, START)
    if look is None or not look.exists:
        trouble = look.trouble if look else ""
        return TableState(known.complete_to, known.last, None, exists=False, trouble=trouble)
    looked_at = min(look.looked_at, facts.now)
    if not look.positioned:
        return TableState(max(known.complete_to, looked_at), START, None, positioned=False)
    delay = source.delay if source else None
    if delay is not None:
        complete_to = max(known.complete_to, looked_at - delay)
        return TableState(complete_to, before(complete_to), look.newest, unread=look.unread)
    newest = max(known.last, look.newest or START)
    complete_to = max(known.complete_to, min(newest.pos, facts.now))
    return TableState(complete_to, newest, look.newest, unread=look.unread)


def _built(topics: list[tuple[TableVerdict, Offset]]) -> TableState:
    slowest, offset = topics[0]
    frontier = max(offset.last, before(slowest.complete_to))
    newest, exists = offset.last, offset.seq > 0
    for verdict, offset in topics[1:]:
        slowest = min(slowest, verdict, key=lambda verdict: verdict.complete_to)
        frontier = min(frontier, max(offset.last, before(verdict.complete_to)))
        newest, exists = max(newest, offset.last), exists or offset.seq > 0
    return TableState(
        slowest.complete_to,
        frontier,
        None if newest == START else newest,
        exists=exists,
        by=slowest.topic,
    )


def _verdict(
    definition: TableDefinition,
    offset: Offset,
    tables: Mapping[str, TableState],
    lane: Offset | None,
    facts: Facts,
) -> TableVerdict:
    match definition.processor:
        case Processor.STEP:
            verdict = _step(definition, offset, tables, facts)
        case Processor.RELOAD:
            verdict = _reload(definition, offset, tables, facts)
        case Processor.SOURCE:
            raise ValueError(f"{definition.topic} is a source: nothing builds it")
        case _:
            assert_never(definition.processor)
    if verdict.due or verdict.broken or _stays(offset, facts):
        reason, until = blocked(definition, offset, lane, facts)
        if reason:
            return TableVerdict(offset.topic, False, reason, verdict.complete_to, not_before=until)
    if verdict.due and _troubled(offset):
        return verdict._replace(reason=(_in_spite, verdict.reason, offset))
    return verdict


def _stays(offset: Offset, facts: Facts) -> bool:
    """Tell whether the topic is stopped or held, so that its state is the answer to `why`."""
    held = bool(offset.hostid) and offset.hostid in facts.live_holders
    return held or offset.state is OffsetState.STOPPED or offset.topic in facts.paused


def _missing(
    definition: TableDefinition, tables: Mapping[str, TableState], facts: Facts
) -> TableVerdict | None:
    """Judge a topic that lacks a dependency: it waits for a new one, a lost one is a fault."""
    gone = [t for t in definition.depends_on if not tables[t].exists and not tables[t].by]
    if not gone:
        return None
    complete_to = _stored(definition, facts).complete_to
    if tables[gone[0]].trouble:
        trouble = tables[gone[0]].trouble
        return TableVerdict(
            definition.topic, False, trouble, complete_to, gone[0], broken=True, away=True
        )
    lost = [table for table in gone if table in facts.offsets]
    if lost:
        why = f"{lost[0]} is gone from the lake; put it back, or take it out of depends_on"
        return TableVerdict(definition.topic, False, why, complete_to, lost[0], broken=True)
    declared = gone[0] in facts.definitions
    why = f"waits for {gone[0]}, which is not in the lake yet"
    return TableVerdict(definition.topic, False, why, complete_to, gone[0], broken=not declared)


def _unbuilt(
    definition: TableDefinition, tables: Mapping[str, TableState], complete_to: int
) -> TableVerdict | None:
    """Judge a topic that could run, but for a table that had no row yet and so is not there."""
    for table in definition.depends_on:
        if not tables[table].exists:
            why = f"waits for {table}, which is not built yet"
            return TableVerdict(definition.topic, False, why, complete_to, table)
    return None


def _stored(definition: TableDefinition, facts: Facts) -> Offset:
    return facts.offsets.get(definition.topic) or Offset(definition.topic, START)


def _step(
    definition: TableDefinition, offset: Offset, tables: Mapping[str, TableState], facts: Facts
) -> TableVerdict:
    missing = _missing(definition, tables, facts)
    if missing and offset.block is None:
        return missing
    ripe = facts.now - (definition.delay or 0)
    slowest = _slowest(definition.depends_on[1:], tables)
    bound = min(ripe, tables[slowest].complete_to) if slowest else ripe
    base = tables[definition.base]
    ahead = facts.ahead.get(definition.topic)
    first = _first_untaken(offset, base, ahead)
    complete_to = max(offset.complete_to, min(bound, base.complete_to, first))
    if offset.block is not None:
        why = f"has to finish the block up to {offset.block.next}"
        return TableVerdict(offset.topic, True, why, complete_to, rows_ahead=offset.block.rows)
    if not base.positioned:
        columns = f"{definition.base_pos} and {definition.base_id}"
        why = f"{definition.base} has no columns {columns} to carry a position"
        return TableVerdict(
            definition.topic, False, why, offset.complete_to, definition.base, broken=True
        )
    rows = ahead.rows if ahead else 0
    reached = max(offset.last, before(offset.complete_to))
    limit = min(base.frontier, before(bound))
    if limit > reached and first < bound and before(first) < base.frontier:
        limits = Limits(facts.now, base.frontier, bound, min(bound, base.complete_to))
        return _unbuilt(definition, tables, complete_to) or TableVerdict(
            offset.topic, True, "due: new rows", complete_to, limits=limits, rows_ahead=rows
        )
    changed = _worth_a_retry(definition, offset, facts)
    if changed:
        limits = Limits(facts.now, offset.last, bound, complete_to, retry=True)
        why = f"due: {changed}, and rows that failed wait for it"
        return TableVerdict(offset.topic, True, why, complete_to, limits=limits)
    again = GREATEST
    if definition.topic in facts.waiting:
        again = _looked_again(offset, facts, definition.listed[1:])
    if first == GREATEST:
        return _fresh(definition, offset, tables, complete_to, ripe, again)
    reason, by = _held(definition, tables, facts.now, slowest)
    # C and F grow no faster than time does: so far they are from letting the first row pass.
    reach = min(bound, base.frontier.pos)
    apart = max(first - reach, first + 1 - bound, reached.pos - reach, 1)
    again = min(again, facts.now + apart)
    return TableVerdict(
        offset.topic, False, reason, complete_to, by, rows_ahead=rows, not_before=again
    )


def _worth_a_retry(definition: TableDefinition, offset: Offset, facts: Facts) -> str:
    """Say what has changed since rows of the topic failed: without a change they fail again."""
    if definition.topic not in facts.waiting:
        return ""
    if offset.definition_version is None:
        return "asked for by hand"
    return _changed(definition, offset, facts, definition.listed[1:])


def _first_untaken(offset: Offset, base: TableState, ahead: Ahead | None) -> int:
    """Give the pos of the first row that the topic has yet to take; GREATEST if there is none.

    Every row before it is taken, and so C needs not wait for the block that takes the rest.
    """
    if offset.block is not None:
        first = ahead.first if ahead else offset.last.pos
        return offset.block.next.pos if first is None else min(first, offset.block.next.pos)
    if base.newest is None or base.newest <= offset.last:
        return GREATEST
    first = ahead.first if ahead else offset.last.pos
    return GREATEST if first is None else first


def _held(
    definition: TableDefinition, tables: Mapping[str, TableState], now: int, slowest: str | None
) -> tuple[Sentence, str | None]:
    """Judge a topic whose base has rows that must wait, and name what they wait for."""
    frontier = tables[definition.base].frontier.pos
    ripe = now - (definition.delay or 0)
    if slowest and tables[slowest].complete_to < ripe and tables[slowest].complete_to <= frontier:
        return (_behind, slowest, tables[slowest], now), slowest
    if frontier < ripe:
        return (_behind, definition.base, tables[definition.base], now), definition.base
    return (_young, definition), None


def _young(definition: TableDefinition) -> str:
    if not definition.delay:
        return f"the newest rows of {definition.base} lie in the future"
    wait = format_duration(definition.delay)
    return f"the newest rows of {definition.base} are younger than its delay of {wait}"


def _behind(table: str, state: TableState, now: int) -> str:
    # Of a table that several topics feed, the one that is late.
    name = state.by or table
    if state.complete_to <= 0:
        return f"held back by {name}, which holds no rows yet"
    behind = format_duration(max(0, now - state.complete_to))
    return f"held back by {name}, complete to {rfc3339(state.complete_to)}, {behind} behind"


def _fresh(
    definition: TableDefinition,
    offset: Offset,
    tables: Mapping[str, TableState],
    complete_to: int,
    ripe: int,
    again: int,
) -> TableVerdict:
    """Judge a topic that has taken every row of its base: it is as complete as what it waits on."""
    limiting = _slowest(definition.depends_on, tables)
    by = limiting if limiting and tables[limiting].complete_to < ripe else None
    reason = (_up_to_date, definition, tables[definition.base])
    return TableVerdict(offset.topic, False, reason, complete_to, by, not_before=again)


def _up_to_date(definition: TableDefinition, base: TableState) -> str:
    if base.newest is None:
        why = f"{definition.base} holds no rows yet"
    else:
        why = f"up to date: no rows of {definition.base} after {rfc3339(base.newest.pos)}"
    if base.unread:
        columns = f"{definition.base_pos} or {definition.base_id}"
        why += f"; {base.unread} rows without {columns} are never read"
    return why


def _reload(
    definition: TableDefinition, offset: Offset, tables: Mapping[str, TableState], facts: Facts
) -> TableVerdict:
    if offset.block is not None:
        return TableVerdict(offset.topic, True, "has to finish its reload", offset.complete_to)
    missing = _missing(definition, tables, facts)
    if missing:
        return missing
    slowest = _slowest(definition.depends_on, tables)
    complete_to = facts.now - (definition.delay or 0)
    if slowest:
        complete_to = min(complete_to, tables[slowest].complete_to)
    complete_to = max(offset.complete_to, complete_to)
    limits = Limits(facts.now, before(complete_to), complete_to, complete_to)
    reason = _changed(definition, offset, facts, definition.listed)
    if reason:
        return _unbuilt(definition, tables, offset.complete_to) or TableVerdict(
            offset.topic, True, f"due: {reason}", offset.complete_to, limits=limits
        )
    by = slowest if slowest and tables[slowest].complete_to <= complete_to else None
    again = _looked_again(offset, facts, definition.listed)
    unchanged = (_unchanged, offset.run)
    return TableVerdict(offset.topic, False, unchanged, complete_to, by, not_before=again)


def _unchanged(since: int | None) -> str:
    why = "up to date: nothing that it reads has changed"
    return why if since is None else f"{why} since {rfc3339(since)}"


def _changed(
    definition: TableDefinition, offset: Offset, facts: Facts, tables: Iterable[str]
) -> str:
    """Say what has changed since the last load; empty when it would come out the same."""
    if offset.seq == 0:
        return "never loaded"
    version = facts.versions.get(definition.topic)
    if version is not None and version != offset.definition_version:
        return "its definition changed"
    for table in tables:
        look = facts.looks.get(table)
        if look is None or not look.exists:
            continue
        read = offset.versions.get(table)
        # A version below the one that was read is another table under the same name, unless the
        # look is the older of the two.
        looked_later = look.looked_at > (offset.run or 0)
        if read is None or look.data_version > read or (look.version < read and looked_later):
            return f"{table} changed"
    return ""


def _looked_again(offset: Offset, facts: Facts, tables: Iterable[str]) -> int:
    """Give when a later look may find changed what nothing has changed in by the looks so far."""
    for table in tables:
        look = facts.looks.get(table)
        if look is not None and look.exists and look.version < offset.versions.get(table, -1):
            return facts.now + 1
    return GREATEST


def _slowest(names: Sequence[str], tables: Mapping[str, TableState]) -> str | None:
    if len(names) < 2:
        return names[0] if names else None
    return min(names, key=lambda name: (tables[name].complete_to, name), default=None)
