"""Step 1: gathers what a plan looks at, from store and lake, and plans.

A leader looks again at every turn: what has not moved since is neither read nor judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tidegate.errors import LakeError
from tidegate.model.execution import Offset
from tidegate.model.facts import Ahead, Facts, Look
from tidegate.model.failed import FailedState
from tidegate.model.landed import after_look
from tidegate.model.lineage import Definition, Processor
from tidegate.model.outlook import Net, Outlook, look_ahead
from tidegate.model.plan import Plan, make_plan
from tidegate.model.position import START, Position, rfc3339
from tidegate.ports import Applied, Holders, Looks, Runtime, Store, Wish
from tidegate.services.following import Following

_NEVER_APPLIED = 0


class Lookout:
    """Looks at the lake as of one time, and remembers what cannot have changed since."""

    def __init__(
        self,
        definitions: Mapping[str, Definition] | None,
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
        self._following = Following(store.offsets)
        self._offsets: Mapping[str, Offset] = {}
        self._named_holders: Collection[str] = ()
        self._plan_for(definitions or {})
        self.renew()

    def _plan_for(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions
        self._net = Net.of(definitions)
        self._named = {
            table for one in definitions.values() for table in self._looked_at(one, retry=False)
        }
        self._versions: Mapping[str, int] = {}
        self._ahead: Mapping[str, Ahead] = {}
        self._beyond: tuple[Mapping[str, Offset], Mapping[str, Look]] = {}, {}
        """What `_ahead` was found with."""
        self._kept: Outlook | None = None

    def renew(self, now: int | None = None) -> None:
        """Look again from now on; `now` is by the store's clock, where that is known."""
        # One time for the whole of it: rows that come meanwhile are the next one's business, and
        # so a run ends even while writers go on.
        self._as_of = self._runtime.now() if now is None else now
        self._looks.clear()

    def plan(self, *, eager: bool) -> Plan:
        """Say what is due, as the store stands now, and of all else what holds it back."""
        return make_plan(self.facts(eager=eager))

    def outlook(self) -> Outlook:
        """Say what is due, as the store stands now, for somebody who asks again and again."""
        self._kept = look_ahead(self.facts(eager=False), self._net, self._kept)
        return self._kept

    def facts(self, *, eager: bool) -> Facts:
        self._read_lineage()
        offsets = self._following.read()
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
            ordered=self._net.ordered,
            **self._wishes(),
        )

    def landed(self, facts: Facts) -> list[Look]:
        """Give the looks at tables that others write, where the store has to remember more."""
        known, builders = facts.offsets, self._net.builders
        found = (look for table, look in facts.looks.items() if table not in builders)
        fresh = (look for look in found if after_look(known.get(look.table), look))
        return sorted(fresh, key=lambda look: look.table)

    def _read_lineage(self) -> None:
        stamp = self._store.lineages.stamp()
        if stamp == self._stamp:
            return
        applied = self._store.lineages.current()
        if self._follows:
            self._plan_for({topic: one.definition for topic, one in applied.items()})
        self._versions = {
            topic: _version(applied.get(topic), definition)
            for topic, definition in self._definitions.items()
        }
        self._stamp = stamp

    def _wishes(self) -> dict[str, Any]:
        wishes = self._store.wishes.all()
        return {
            "paused": {
                flow: f"by {wish.paused_by} at {rfc3339(wish.paused_at)}{_because(wish)}"
                for flow, wish in wishes.items()
                if wish.paused_at is not None
            },
            "asked": frozenset(
                flow
                for flow, wish in wishes.items()
                if wish.run_asked_at is not None and not _ran_since(self._offsets.get(flow), wish)
            ),
        }

    def _waiting(self) -> frozenset[str]:
        counts = self._store.failures.counts()
        return frozenset(topic for topic in counts if counts[topic].get(FailedState.WAITING))

    def _tables_to_look_at(self, waiting: Collection[str]) -> set[str]:
        retried = (self._definitions[topic] for topic in waiting if topic in self._definitions)
        more = {table for one in retried for table in self._looked_at(one, retry=True)}
        return self._named | more

    def _looked_at(self, definition: Definition, *, retry: bool) -> Collection[str]:
        """Name the tables of which a plan has to know more than the offsets tell."""
        match definition.processor:
            case Processor.RELOAD:
                return definition.listed
            case Processor.STEP if retry:
                return definition.listed
            case Processor.STEP:
                return set(definition.depends_on) - self._net.builders.keys()
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
            return self._lake.look(table, pos, id, data_version=True)
        except LakeError as error:
            # One table that cannot be read holds up what is built from it, and nothing else.
            return Look(table, self._as_of, exists=False, trouble=str(error))

    def _marker(self, table: str) -> object:
        """Give what changes whenever we write a table; a landed one is looked at once."""
        topics = self._net.builders.get(table)
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
            else:
                ahead[topic] = self._ahead_of(definition, offset, looks)
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
        tables = {self._net.table_of(name) for name in moved}
        for table, look in looks.items():
            known = known_looks.get(table)
            if known is None or (known.version, known.newest) != (look.version, look.newest):
                tables.add(table)
        return topics | {topic for table in tables for topic in self._net.readers.get(table, ())}

    def _ahead_of(self, definition: Definition, offset: Offset, looks: Mapping[str, Look]) -> Ahead:
        """See what lies before a topic; the same as last time while nothing has moved."""
        base = definition.base
        landed = looks[base].version if base not in self._net.builders else None
        marker = (offset.last, landed, self._marker(base))
        known = self._known_ahead.get(definition.topic)
        if known is None or known[0] != marker:
            found = self._lake.ahead(base, definition.base_pos, definition.base_id, offset.last)
            known = self._known_ahead[definition.topic] = (marker, found)
        return known[1]

    def _newest(self, table: str, looks: Mapping[str, Look]) -> Position | None:
        topics = self._net.builders.get(table)
        if topics is None:
            return looks[table].newest
        reached = (self._offsets[topic].last for topic in topics if topic in self._offsets)
        return max(reached, default=None)


def _version(applied: Applied | None, definition: Definition) -> int:
    same = applied is not None and applied.definition == definition
    return applied.version if applied is not None and same else _NEVER_APPLIED


def _because(wish: Wish) -> str:
    return f" ({wish.paused_why})" if wish.paused_why else ""


def _ran_since(offset: Offset | None, wish: Wish) -> bool:
    return offset is not None and (offset.run or 0) > (wish.run_asked_at or 0)
