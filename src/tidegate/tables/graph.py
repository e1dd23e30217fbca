"""The lineage as a graph: order, circles, selectors, and who builds and reads each table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidegate.tables.definition import Processor, TableDefinition


def order(definitions: Iterable[TableDefinition]) -> list[TableDefinition]:
    """Put each topic behind those that build the tables it waits for; a cycle raises."""
    by_table: dict[str, list[TableDefinition]] = {}
    for definition in definitions:
        by_table.setdefault(definition.table, []).append(definition)
    tables, found = _visit(by_table)
    if found:
        raise found[0]
    return [definition for table in tables for definition in _siblings(by_table[table])]


def _siblings(definitions: list[TableDefinition]) -> list[TableDefinition]:
    return sorted(definitions, key=_in_table) if len(definitions) > 1 else definitions


def _in_table(definition: TableDefinition) -> tuple[str, int]:
    """Assignment the topics of a table: shard 10 comes behind shard 9."""
    shard = definition.shard
    return definition.entry, shard.number if shard else -1


def circles(definitions: Iterable[TableDefinition]) -> list[LineageCycle]:
    """Find tables that wait for one another: each circle that a walk down the lineage meets."""
    by_table: dict[str, list[TableDefinition]] = {}
    for definition in definitions:
        by_table.setdefault(definition.table, []).append(definition)
    return _visit(by_table)[1]


def _visit(by_table: Mapping[str, list[TableDefinition]]) -> tuple[list[str], list[LineageCycle]]:
    """Walk down from every table, without recursion: a chain may be longer than Python's stack."""
    done: dict[str, None] = {}
    found: list[LineageCycle] = []
    for start in sorted(by_table):
        path: dict[str, Iterator[str]] = {}
        at: str | None = start
        while at is not None:
            if at in path:
                found.append(LineageCycle(tuple(path)[list(path).index(at) :]))
            elif at in by_table and at not in done:
                waited = [name for one in by_table[at] for name in one.depends_on]
                path[at] = iter(waited)
            at = None
            while path and at is None:
                table, ahead = next(reversed(path.items()))
                at = next(ahead, None)
                if at is None:
                    del path[table]
                    done[table] = None
    return list(done), found


class LineageCycle(ValueError):
    """Tables that wait for one another in a circle."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        self.tables = tables
        circle = " → ".join((*tables, tables[0]))
        super().__init__(f"tables wait for one another in a circle: {circle}")


def select(definitions: Mapping[str, TableDefinition], selectors: Iterable[str]) -> set[str]:
    """Resolve `fact.orders`, `fact.*`, `+fact.orders` (with all it depends on), `fact.orders+`.

    The name of a table, or of an entry of the lineage, means all of its topics.
    Without a selector all topics are meant. A selector that finds nothing raises ValueError.
    """
    buildable = {t: d for t, d in definitions.items() if d.processor is not Processor.SOURCE}
    chosen: set[str] = set()
    given = list(selectors)
    for selector in given:
        pattern = selector.removeprefix("+").removesuffix("+")
        found = {
            topic
            for topic, definition in buildable.items()
            if any(
                fnmatchcase(name, pattern) for name in (topic, definition.entry, definition.table)
            )
        }
        if not found:
            names = ", ".join(buildable) or "none"
            raise ValueError(f"{selector!r} matches no topic; there are: {names}")
        if selector.startswith("+"):
            found |= upstream(buildable, found)
        if selector.endswith("+"):
            found |= downstream(buildable, found)
        chosen |= found
    return chosen if given else set(buildable)


def upstream(definitions: Mapping[str, TableDefinition], topics: set[str]) -> set[str]:
    """Give the topics with all that build what they read."""
    builders: dict[str, set[str]] = {}
    for topic, definition in definitions.items():
        builders.setdefault(definition.table, set()).add(topic)
    return _follow(topics, lambda topic: _united(builders, definitions[topic].listed))


def downstream(definitions: Mapping[str, TableDefinition], topics: set[str]) -> set[str]:
    """Give the topics with all that read what they build."""
    readers: dict[str, set[str]] = {}
    for topic, definition in definitions.items():
        for table in definition.listed:
            readers.setdefault(table, set()).add(topic)
    return _follow(topics, lambda topic: _united(readers, [definitions[topic].table]))


def _united(topics_of: Mapping[str, set[str]], tables: Iterable[str]) -> set[str]:
    return {topic for table in tables for topic in topics_of.get(table, ())}


def _follow(topics: set[str], next_to: Callable[[str], set[str]]) -> set[str]:
    found, waiting = set(topics), list(topics)
    while waiting:
        more = next_to(waiting.pop()) - found
        found |= more
        waiting += more
    return found


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """Which topics build and read each table."""

    ordered: Sequence[TableDefinition]
    """All definitions, each behind those it waits for."""
    places: Mapping[str, int]
    """Where each topic stands among them."""
    builders: Mapping[str, Sequence[str]]
    readers: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, definitions: Mapping[str, TableDefinition]) -> LineageGraph:
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

    def in_order(self, topics: Collection[str]) -> list[TableDefinition]:
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
