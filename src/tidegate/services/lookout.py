"""Step 1: gathers what a plan looks at, from store and lake, and plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.errors import LakeError
from tidegate.model.execution import Offset
from tidegate.model.failed import FailedState
from tidegate.model.lineage import Definition, Processor, order
from tidegate.model.plan import Ahead, Facts, Look, Plan, make_plan
from tidegate.model.position import START, Position, rfc3339
from tidegate.ports import Holders, Looks, Runtime, Store, Wish

_NEVER_APPLIED = 0


class Lookout:
    """Looks at the lake as of one time, and remembers what cannot have changed since."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        store: Store,
        lake: Looks,
        holders: Holders,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._lake = lake
        self._holders = holders
        self._runtime = runtime
        self._looks: dict[tuple[str, object], Look] = {}
        self._ahead: dict[str, tuple[object, Ahead]] = {}
        self.renew(definitions)

    def renew(self, definitions: Mapping[str, Definition], now: int | None = None) -> None:
        """Look again, at what these definitions name; `now` is by the store's clock, if known."""
        self._definitions = definitions
        self._builders: dict[str, list[str]] = {}
        for definition in definitions.values():
            if definition.processor is not Processor.SOURCE:
                self._builders.setdefault(definition.table, []).append(definition.topic)
        self._ordered = order(definitions.values())
        # One time for the whole of it: rows that come meanwhile are the next one's business, and
        # so a run ends even while writers go on.
        self._as_of = self._runtime.now() if now is None else now
        self._looks.clear()

    def plan(self, *, eager: bool) -> Plan:
        """Say what is due, as the store stands now."""
        return make_plan(self.facts(eager=eager))

    def facts(self, *, eager: bool) -> Facts:
        offsets = self._store.offsets.all()
        waiting = self._waiting()
        looks = {table: self._look(table, offsets) for table in self._tables_to_look_at(waiting)}
        holders = {offset.hostid for offset in offsets.values() if offset.hostid}
        return Facts(
            definitions=self._definitions,
            offsets=offsets,
            looks=looks,
            now=self._as_of,
            ahead=self._all_ahead(offsets, looks),
            waiting=waiting,
            live_holders=frozenset(filter(self._holders.lives, holders)),
            versions=self._versions(),
            eager=eager,
            ordered=self._ordered,
            **self._wishes(offsets),
        )

    def _wishes(self, offsets: Mapping[str, Offset]) -> dict[str, Any]:
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
                if wish.run_asked_at is not None and not _ran_since(offsets.get(flow), wish)
            ),
        }

    def _waiting(self) -> frozenset[str]:
        counts = self._store.failures.counts()
        return frozenset(topic for topic in counts if counts[topic].get(FailedState.WAITING))

    def landed(self) -> list[Look]:
        """Give the looks at tables that others write, for the store to remember."""
        offsets = self._store.offsets.all()
        tables = {
            table
            for table in self._tables_to_look_at(self._waiting())
            if table not in self._builders
        }
        return [self._look(table, offsets) for table in sorted(tables)]

    def _versions(self) -> dict[str, int]:
        applied = self._store.lineages.current()
        return {
            topic: applied[topic].version
            if topic in applied and applied[topic].definition == definition
            else _NEVER_APPLIED
            for topic, definition in self._definitions.items()
        }

    def _tables_to_look_at(self, waiting: frozenset[str]) -> set[str]:
        tables: set[str] = set()
        for definition in self._definitions.values():
            match definition.processor:
                case Processor.RELOAD:
                    tables.update(definition.listed)
                case Processor.STEP if definition.topic in waiting:
                    tables.update(definition.listed)
                case Processor.STEP:
                    tables.update(set(definition.depends_on) - self._builders.keys())
                case Processor.SOURCE:
                    tables.add(definition.table)
        return tables

    def _look(self, table: str, offsets: Mapping[str, Offset]) -> Look:
        key = (table, self._marker(table, offsets))
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

    def _marker(self, table: str, offsets: Mapping[str, Offset]) -> object:
        """Give what changes whenever we write a table; a landed one is looked at once."""
        topics = self._builders.get(table, [])
        return tuple(offsets[topic].seq for topic in topics if topic in offsets)

    def _position_columns(self, table: str) -> tuple[str, str]:
        source = self._definitions.get(table)
        return (source.pos, source.id) if source else ("pos", "id")

    def _all_ahead(
        self, offsets: Mapping[str, Offset], looks: Mapping[str, Look]
    ) -> dict[str, Ahead]:
        ahead: dict[str, Ahead] = {}
        for topic, definition in self._definitions.items():
            offset = offsets.get(topic) or Offset(topic, START)
            if definition.processor is not Processor.STEP:
                continue
            newest = self._newest(definition.base, offsets, looks)
            if newest is None or newest <= offset.last:
                continue
            ahead[topic] = self._ahead_of(definition, offset, offsets, looks)
        return ahead

    def _ahead_of(
        self,
        definition: Definition,
        offset: Offset,
        offsets: Mapping[str, Offset],
        looks: Mapping[str, Look],
    ) -> Ahead:
        """See what lies before a topic; the same as last time while nothing has moved."""
        base = definition.base
        landed = looks[base].version if base not in self._builders else None
        marker = (offset.last, landed, self._marker(base, offsets))
        known = self._ahead.get(definition.topic)
        if known is None or known[0] != marker:
            found = self._lake.ahead(base, definition.base_pos, definition.base_id, offset.last)
            known = self._ahead[definition.topic] = (marker, found)
        return known[1]

    def _newest(
        self, table: str, offsets: Mapping[str, Offset], looks: Mapping[str, Look]
    ) -> Position | None:
        topics = self._builders.get(table)
        if topics is None:
            return looks[table].newest
        return max((offsets[topic].last for topic in topics if topic in offsets), default=None)


def _because(wish: Wish) -> str:
    return f" ({wish.paused_why})" if wish.paused_why else ""


def _ran_since(offset: Offset | None, wish: Wish) -> bool:
    return offset is not None and (offset.run or 0) > (wish.run_asked_at or 0)
