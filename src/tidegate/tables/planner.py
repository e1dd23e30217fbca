"""Step 1: gathers what a plan looks at, from store and lake, and keeps the plan while it holds.

A leader looks again at every turn: what has not moved since is neither read nor judged again. What
is due can change in two ways. Something that a topic looks at moves: then it is judged anew, and so
is all that is built from it. Or time passes: C and F grow no faster than the clock, so each verdict
knows until when it holds (`TableVerdict.not_before`), and what is due stays due. Either way the
outcome is that of `make_plan` over the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.errors import LakeError
from tidegate.model.entities import FailedState
from tidegate.model.flow import Kind
from tidegate.model.instances import Due
from tidegate.model.looks import Ahead, Look, after_look
from tidegate.model.position import GREATEST, START, Offset, Position, rfc3339
from tidegate.ports.kinds import Instruction, Link
from tidegate.ports.outside import Holders, Looks, Runtime
from tidegate.ports.row_cache import RowCache
from tidegate.ports.store import Applied, FlowControl, Store
from tidegate.tables.definition import Processor, TableDefinition, as_table
from tidegate.tables.graph import LineageGraph
from tidegate.tables.plan import Facts, Plan, TableVerdict, make_plan, with_limits

Judge = Callable[[Collection[str]], Mapping[str, TableVerdict]]
"""Gives the verdicts on some topics, as of one look."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """What is due as of some facts, and until when the rest is not."""

    facts: Facts
    graph: LineageGraph
    due: frozenset[str]
    not_before: Mapping[str, int]
    """By topic that is not due and may be by time alone."""

    def verdicts(self, topics: Collection[str]) -> Mapping[str, TableVerdict]:
        """Judge topics as `make_plan` does, with no more of the lineage than they need."""
        wanted = self.graph.in_order(self.graph.upstream(topics))
        if not wanted:
            return {}
        found = make_plan(replace(self.facts, ordered=wanted)).verdicts
        return {topic: found[topic] for topic in topics}


def keep_plan(facts: Facts, graph: LineageGraph, kept: KeptPlan | None) -> KeptPlan:
    """Say what is due, from what is kept of an earlier look where that still holds."""
    if kept is None or kept.graph is not graph or not _goes_on(kept.facts, facts):
        topics = [topic for topics in graph.builders.values() for topic in topics]
        return _judged(KeptPlan(facts, graph, frozenset(), {}), topics)
    moved = {graph.table_of(name) for name in _moved(kept.facts, facts)}
    affected = graph.downstream(moved)
    affected.update(topic for topic, until in kept.not_before.items() if until <= facts.now)
    return _judged(replace(kept, facts=facts), affected)


def _judged(kept_plan: KeptPlan, topics: Collection[str]) -> KeptPlan:
    """Put new verdicts in the place of those that no longer hold."""
    due, not_before = set(kept_plan.due), dict(kept_plan.not_before)
    for topic, verdict in kept_plan.verdicts(topics).items():
        not_before.pop(topic, None)
        due.discard(topic)
        if verdict.due:
            due.add(topic)
        elif verdict.not_before < GREATEST:
            not_before[topic] = verdict.not_before
    return replace(kept_plan, due=frozenset(due), not_before=not_before)


def _goes_on(before: Facts, after: Facts) -> bool:
    """Tell whether the one may follow on the other: no clock was set back meanwhile."""
    return before.eager == after.eager and before.now <= after.now


def _moved(before: Facts, after: Facts) -> set[str]:
    """Name the topics and the landed tables of which other things are known."""
    moved = {
        *_different(before.offsets, after.offsets),
        *_different(before.ahead, after.ahead),
        *_different(before.versions, after.versions),
        *_different(before.paused, after.paused),
        *(before.waiting ^ after.waiting),
        *(before.asked ^ after.asked),
        *(before.looks.keys() ^ after.looks.keys()),
    }
    for table, look in after.looks.items():
        known = before.looks.get(table)
        if known is None or not _continues(known, before.now, look, after.now):
            moved.add(table)
    turned = before.live_holders ^ after.live_holders
    if turned:
        moved.update(topic for topic, one in after.offsets.items() if one.hostid in turned)
    return moved


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    if before is after:
        return set()
    changed = {name for name, one in after.items() if before.get(name) is not one}
    return {name for name in changed if before.get(name) != after[name]} | (
        before.keys() - after.keys()
    )


def _continues(known: Look, then: int, look: Look, now: int) -> bool:
    """Tell whether a look found nothing new, and was taken no later than the clock has gone on."""
    if min(look.looked_at, now) - min(known.looked_at, then) not in range(now - then + 1):
        return False
    return (
        known.version == look.version
        and known.newest == look.newest
        and known.data_version == look.data_version
        and known.unread == look.unread
        and known.exists == look.exists
        and known.positioned == look.positioned
        and known.trouble == look.trouble
    )


_NEVER_APPLIED = 0


class TablePlanner:
    """Implements `ports.Planner`: looks at the lake as of one time, and remembers what holds."""

    def __init__(
        self,
        definitions: Mapping[str, TableDefinition] | None,
        store: Store,
        lake: Looks,
        holders: Holders,
        runtime: Runtime,
    ) -> None:
        self._follows = definitions is None
        """Plans what is applied in the store, and not a project that somebody has at hand."""
        self._store = store
        self._lake = lake
        self._holders = holders
        self._runtime = runtime
        self._looks: dict[tuple[str, object], Look] = {}
        self._known_ahead: dict[str, tuple[object, Ahead]] = {}
        self._stamp: object = None
        self._rows = RowCache(store.offsets)
        self._offsets: Mapping[str, Offset] = {}
        self._named_holders: Collection[str] = ()
        self._facts = Facts({}, {}, {}, 0)
        self._plan = Plan({}, {}, 0)
        self._judge: Judge = lambda _: {}
        """Set by each look: what it saw, and what it makes of a topic."""
        self._plan_for(definitions or {})
        self.renew()

    def _plan_for(self, definitions: Mapping[str, TableDefinition]) -> None:
        self._definitions = definitions
        self._graph = LineageGraph.of(definitions)
        self._named = {
            table for one in definitions.values() for table in self._looked_at(one, retry=False)
        }
        self._versions: Mapping[str, int] = {}
        self._ahead: Mapping[str, Ahead] = {}
        self._beyond: tuple[Mapping[str, Offset], Mapping[str, Look]] = {}, {}
        """What `_ahead` was found with."""
        self._kept: KeptPlan | None = None

    def renew(self, now: int | None = None) -> None:
        """Look again from now on; `now` is by the store's clock, where that is known."""
        # One time for the whole of it: rows that come meanwhile are the next one's business, and
        # so a run ends even while writers go on.
        self._as_of = self._runtime.now() if now is None else now
        self._looks.clear()

    def due(self, now: int) -> Sequence[Due]:
        """Say what could run as of now, for somebody who asks again and again; raises LakeError."""
        self.renew(now)
        kept = self.kept_plan()
        self._facts, self._judge = kept.facts, kept.verdicts
        return [
            Due(definition.flow, _last_run(kept.facts, definition))
            for definition in kept.graph.in_order(kept.due)
        ]

    def verdicts(self, *, eager: bool) -> Mapping[str, TableVerdict]:
        """Judge every topic as of the planner's own time; raises LakeError."""
        return self.plan(eager=eager).verdicts

    @property
    def as_of(self) -> int:
        return self._as_of

    def processor(self, flow: str) -> str:
        return self._definitions[flow].processor.value

    def chain(self, flow: str) -> Sequence[Link]:
        """Follow what holds a topic back, down to the table at fault, by the last plan."""
        plan = self._plan
        names = plan.chain(flow) if flow in plan.verdicts else ()
        return [
            Link(name, plan.verdicts[name].complete_to, plan.verdicts[name].why)
            if name in plan.verdicts
            else Link(name, plan.tables[name].complete_to, "written by others")
            for name in names
        ]

    def rows_to_read(self, flows: Collection[str]) -> int:
        """Count what lies before the Steps among these topics, and all that their Reloads read."""
        verdicts = self.verdicts(eager=True)
        asked = [self._definitions[flow] for flow in flows if flow in verdicts]
        read_whole = {
            table for one in asked if one.processor is Processor.RELOAD for table in one.listed
        }
        whole = sum(
            self._lake.ahead(table, *self._position_columns(table), START).rows
            for table in read_whole
        )
        return whole + sum(verdicts[one.topic].rows_ahead for one in asked)

    def instruct(self, chosen: Collection[str]) -> Sequence[Instruction]:
        """Give what executions of these topics are told, as of the last look."""
        return [
            Instruction(
                self._definitions[topic].flow,
                with_limits(verdict.limits),
                goes_on=_goes_on_from(self._facts.offsets.get(topic)),
            )
            for topic, verdict in self._judge(chosen).items()
        ]

    def record_looks(self) -> None:
        """Let the store know how far landed tables were seen to be."""
        self._store.offsets.see(self._landed(self._facts), self._runtime.now())

    def plan(self, *, eager: bool) -> Plan:
        """Say what is due, as the store stands now, and of all else what holds it back."""
        self._facts = self.facts(eager=eager)
        plan = self._plan = make_plan(self._facts)
        self._judge = lambda topics: {topic: plan.verdicts[topic] for topic in topics}
        return plan

    def kept_plan(self) -> KeptPlan:
        """Say what is due, as the store stands now, with what still holds of the last answer."""
        self._kept = keep_plan(self.facts(eager=False), self._graph, self._kept)
        return self._kept

    def facts(self, *, eager: bool) -> Facts:
        self._read_lineage()
        offsets = self._rows.read()
        if offsets is not self._offsets:
            self._offsets = offsets
            self._named_holders = {one.hostid for one in offsets.values() if one.hostid}
        waiting = self._waiting()
        looks = {table: self._look(table) for table in self._tables_to_look_at(waiting)}
        self._look_beyond(looks)
        return Facts(
            definitions=self._definitions,
            offsets=offsets,
            looks=looks,
            now=self._as_of,
            ahead=self._ahead,
            waiting=waiting,
            live_holders=frozenset(filter(self._holders.lives, self._named_holders)),
            versions=self._versions,
            eager=eager,
            ordered=self._graph.ordered,
            **self._controls(),
        )

    def _landed(self, facts: Facts) -> list[Look]:
        """Give the looks at tables that others write, where the store has to remember more."""
        known, builders = facts.offsets, self._graph.builders
        found = (look for table, look in facts.looks.items() if table not in builders)
        fresh = (look for look in found if after_look(known.get(look.table), look))
        return sorted(fresh, key=lambda look: look.table)

    def _read_lineage(self) -> None:
        stamp = self._store.definitions.stamp()
        if stamp == self._stamp:
            return
        applied = self._store.definitions.current(Kind.TABLE)
        if self._follows:
            self._plan_for({topic: as_table(one.definition) for topic, one in applied.items()})
        self._versions = {
            topic: _version(applied.get(topic), definition)
            for topic, definition in self._definitions.items()
        }
        self._stamp = stamp

    def _controls(self) -> dict[str, Any]:
        controls = self._store.controls.all()
        return {
            "paused": {
                flow: f"by {control.paused_by} at {rfc3339(control.paused_at)}{_because(control)}"
                for flow, control in controls.items()
                if control.paused_at is not None
            },
            "asked": frozenset(
                flow
                for flow, control in controls.items()
                if control.run_asked_at is not None
                and not _ran_since(self._offsets.get(flow), control)
            ),
        }

    def _waiting(self) -> frozenset[str]:
        counts = self._store.failures.counts()
        return frozenset(topic for topic in counts if counts[topic].get(FailedState.WAITING))

    def _tables_to_look_at(self, waiting: Collection[str]) -> set[str]:
        retried = (self._definitions[topic] for topic in waiting if topic in self._definitions)
        more = {table for one in retried for table in self._looked_at(one, retry=True)}
        return self._named | more

    def _looked_at(self, definition: TableDefinition, *, retry: bool) -> Collection[str]:
        """Name the tables of which a plan has to know more than the offsets tell."""
        match definition.processor:
            case Processor.RELOAD:
                return definition.listed
            case Processor.STEP if retry:
                return definition.listed
            case Processor.STEP:
                return set(definition.depends_on) - self._graph.builders.keys()
            case Processor.SOURCE:
                return (definition.table,)

    def _look(self, table: str) -> Look:
        key = (table, self._marker(table))
        if key not in self._looks:
            pos, id = self._position_columns(table)
            self._looks[key] = self._look_at(table, pos, id)
        return self._looks[key]

    def _look_at(self, table: str, pos: str, id: str) -> Look:
        try:
            look = self._lake.look(table, pos, id, data_version=True)
            if not look.exists and table in self._offsets:
                self._lake.require_there()
            return look
        except LakeError as error:
            # One table that cannot be read holds up what is built from it, and nothing else.
            return Look(table, self._as_of, exists=False, trouble=str(error))

    def _marker(self, table: str) -> object:
        """Give what changes whenever we write a table; a landed one is looked at once."""
        topics = self._graph.builders.get(table)
        if topics is None:
            return None
        return tuple(self._offsets[topic].seq for topic in topics if topic in self._offsets)

    def _position_columns(self, table: str) -> tuple[str, str]:
        source = self._definitions.get(table)
        return (source.pos, source.id) if source else ("pos", "id")

    def _look_beyond(self, looks: Mapping[str, Look]) -> None:
        """See what lies before the topics that have moved, or whose base has."""
        moved = self._moved(looks)
        ahead = dict(self._ahead)
        for topic in moved:
            definition = self._definitions[topic]
            if definition.processor is not Processor.STEP:
                continue
            offset = self._offsets.get(topic) or Offset(topic, START)
            newest = self._newest(definition.base, looks)
            if newest is None or newest <= offset.last:
                ahead.pop(topic, None)
                continue
            try:
                ahead[topic] = self._ahead_of(definition, offset, looks)
            except LakeError:
                # Nobody knows what lies there: whoever runs the topic says why it cannot be read.
                ahead.pop(topic, None)
        if moved:
            self._ahead = ahead
        self._beyond = self._offsets, looks

    def _moved(self, looks: Mapping[str, Look]) -> set[str]:
        """Name the topics whose position, or whose base table, is another than last time."""
        known_offsets, known_looks = self._beyond
        moved = set[str]()
        if known_offsets is not self._offsets:
            moved.update(
                name for name, one in self._offsets.items() if known_offsets.get(name) is not one
            )
            moved.update(known_offsets.keys() - self._offsets.keys())
        topics = moved & self._definitions.keys()
        tables = {self._graph.table_of(name) for name in moved}
        for table, look in looks.items():
            known = known_looks.get(table)
            if known is None or (known.version, known.newest) != (look.version, look.newest):
                tables.add(table)
        return topics | {topic for table in tables for topic in self._graph.readers.get(table, ())}

    def _ahead_of(
        self, definition: TableDefinition, offset: Offset, looks: Mapping[str, Look]
    ) -> Ahead:
        """See what lies before a topic; the same as last time while nothing has moved."""
        base = definition.base
        landed = looks[base].version if base not in self._graph.builders else None
        marker = (offset.last, landed, self._marker(base))
        known = self._known_ahead.get(definition.topic)
        if known is None or known[0] != marker:
            found = self._lake.ahead(base, definition.base_pos, definition.base_id, offset.last)
            known = self._known_ahead[definition.topic] = (marker, found)
        return known[1]

    def _newest(self, table: str, looks: Mapping[str, Look]) -> Position | None:
        topics = self._graph.builders.get(table)
        if topics is None:
            return looks[table].newest
        reached = (self._offsets[topic].last for topic in topics if topic in self._offsets)
        return max(reached, default=None)


def _version(applied: Applied | None, definition: TableDefinition) -> int:
    same = applied is not None and applied.definition == definition
    return applied.version if applied is not None and same else _NEVER_APPLIED


def _goes_on_from(offset: Offset | None) -> bool:
    """Tell whether the last execution failed or died, so that the next one is its retry."""
    return offset is not None and offset.goes_on


def _last_run(facts: Facts, definition: TableDefinition) -> int:
    offset = facts.offsets.get(definition.topic)
    return (offset.run or 0) if offset else 0


def _because(control: FlowControl) -> str:
    return f" ({control.paused_why})" if control.paused_why else ""


def _ran_since(offset: Offset | None, control: FlowControl) -> bool:
    return offset is not None and (offset.run or 0) > (control.run_asked_at or 0)
