"""Step 1, again and again: a plan that is kept, and made anew only where something has moved.

What is due can change in two ways. Something that a topic looks at moves: then it is judged anew,
and so is all that is built from it. Or time passes: C and F grow no faster than the clock, so each
verdict knows until when it holds (`Verdict.not_before`), and what is due stays due. Either way the
outcome is that of `make_plan` over the same facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.model.facts import Facts, Look
from tidegate.model.lineage import Definition, Processor, order
from tidegate.model.plan import Verdict, make_plan
from tidegate.model.position import GREATEST


@dataclass(frozen=True, slots=True)
class Net:
    """Which topics build and read each table."""

    ordered: Sequence[Definition]
    """All definitions, each behind those it waits for."""
    places: Mapping[str, int]
    """Where each topic stands among them."""
    builders: Mapping[str, Sequence[str]]
    readers: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, definitions: Mapping[str, Definition]) -> Net:
        ordered = order(definitions.values())
        builders: dict[str, list[str]] = {}
        readers: dict[str, list[str]] = {}
        for definition in ordered:
            if definition.processor is not Processor.SOURCE:
                builders.setdefault(definition.table, []).append(definition.topic)
            for table in definition.listed:
                readers.setdefault(table, []).append(definition.topic)
        places = {definition.topic: place for place, definition in enumerate(ordered)}
        return cls(ordered, places, builders, readers)

    def table_of(self, name: str) -> str:
        """Give the table of a topic; a landed one is known by its own name."""
        place = self.places.get(name)
        return name if place is None else self.ordered[place].table

    def in_order(self, topics: Collection[str]) -> list[Definition]:
        return [self.ordered[place] for place in sorted(map(self.places.__getitem__, topics))]

    def downstream(self, tables: Iterable[str]) -> set[str]:
        """Give the topics that build these tables, and all that are built from them."""
        waiting = list(tables)
        topics = {topic for table in waiting for topic in self.builders.get(table, ())}
        seen = set(waiting)
        while waiting:
            for topic in self.readers.get(waiting.pop(), ()):
                topics.add(topic)
                table = self.table_of(topic)
                if table not in seen:
                    seen.add(table)
                    waiting.append(table)
        return topics

    def upstream(self, topics: Iterable[str]) -> set[str]:
        """Give these topics with all whose C and F theirs follow from."""
        found = set(topics)
        waiting = list(found)
        while waiting:
            definition = self.ordered[self.places[waiting.pop()]]
            for table in definition.depends_on:
                for topic in self.builders.get(table, ()):
                    if topic not in found:
                        found.add(topic)
                        waiting.append(topic)
        return found


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is due as of some facts, and until when the rest is not."""

    facts: Facts
    net: Net
    due: frozenset[str]
    not_before: Mapping[str, int]
    """By topic that is not due and may be by time alone."""

    def verdicts(self, topics: Collection[str]) -> Mapping[str, Verdict]:
        """Judge topics as `make_plan` does, with no more of the lineage than they need."""
        wanted = self.net.in_order(self.net.upstream(topics))
        if not wanted:
            return {}
        found = make_plan(replace(self.facts, ordered=wanted)).verdicts
        return {topic: found[topic] for topic in topics}


def look_ahead(facts: Facts, net: Net, kept: Outlook | None) -> Outlook:
    """Say what is due, from what is kept of an earlier look where that still holds."""
    if kept is None or kept.net is not net or not _goes_on(kept.facts, facts):
        topics = [topic for topics in net.builders.values() for topic in topics]
        return _judged(Outlook(facts, net, frozenset(), {}), topics)
    moved = {net.table_of(name) for name in _moved(kept.facts, facts)}
    stirred = net.downstream(moved)
    stirred.update(topic for topic, until in kept.not_before.items() if until <= facts.now)
    return _judged(replace(kept, facts=facts), stirred)


def _judged(outlook: Outlook, topics: Collection[str]) -> Outlook:
    """Put new verdicts in the place of those that no longer hold."""
    due, not_before = set(outlook.due), dict(outlook.not_before)
    for topic, verdict in outlook.verdicts(topics).items():
        not_before.pop(topic, None)
        due.discard(topic)
        if verdict.due:
            due.add(topic)
        elif verdict.not_before < GREATEST:
            not_before[topic] = verdict.not_before
    return replace(outlook, due=frozenset(due), not_before=not_before)


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
