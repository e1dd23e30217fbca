"""Lineage: which table is built from which, how, and under what topic name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from tidegate.model.duration import HOUR

DEFAULT_REPEAT = HOUR
DEFAULT_MAXSTEP = 1_000_000
DEFAULT_FAILED_ROWS = 1_000
DEFAULT_RETRIES = 100
TOPIC_COLUMN = "_topic"
"""The column that a table fed by several topics gets, with the topic of each row."""

MOST_SHARDS = 64

_TABLE = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_TOPIC = re.compile(
    r"(?P<table>[A-Za-z_]\w*\.[A-Za-z_]\w*)(?:#(?P<tag>[\w\-]+))?(?::(?P<shard>\d{1,9}))?",
    re.ASCII,
)


class Processor(StrEnum):
    """How a topic's rows come into its table."""

    STEP = "step"  # new rows, block by block
    RELOAD = "reload"  # the whole table anew, in one commit
    SOURCE = "source"  # somebody else writes it; the entry says how complete it is


@dataclass(frozen=True, slots=True)
class TopicName:
    """`db.table[#tag][:shard]`: the table that is written, and which of its topics this is."""

    table: str
    tag: str | None = None
    shard: int | None = None

    @classmethod
    def parse(cls, text: str) -> TopicName:
        found = _TOPIC.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:60]!r} is not a topic; write db.table, or db.table#tag for one of several"
                " sources of a table (letters, digits and _)"
            )
        shard = found["shard"]
        return cls(found["table"], found["tag"], int(shard) if shard is not None else None)

    def whole(self) -> TopicName:
        """Name the entry of the lineage that the topic is of."""
        return replace(self, shard=None)

    def __str__(self) -> str:
        tag = f"#{self.tag}" if self.tag is not None else ""
        shard = f":{self.shard}" if self.shard is not None else ""
        return f"{self.table}{tag}{shard}"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the parts that the rows of a base table are dealt into, by the hash of a column."""

    column: str
    number: int
    of: int

    def condition(self, qualifier: str = "") -> str:
        """Write it in SQL; a NULL has a hash too, so that each row is in one shard."""
        return f"pmod(xxhash64({qualifier}`{self.column}`), {self.of}) = {self.number}"


def is_table(text: str) -> bool:
    """Tell whether the text is a table's name, `db.table`."""
    return _TABLE.fullmatch(text) is not None


@dataclass(frozen=True)
class Definition:
    """One entry of the lineage, with the texts of the views it reads, as it was applied."""

    topic: str
    processor: Processor
    depends_on: tuple[str, ...] = ()
    unwaited: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    delay: int | None = None
    repeat: int | None = None
    maxstep: int = DEFAULT_MAXSTEP
    keys: tuple[str, ...] = ()
    deleted: str = ""
    checks: Mapping[str, str] = field(default_factory=dict)
    max_failed_rows: int = DEFAULT_FAILED_ROWS
    max_failed_share: float = 1.0
    max_retries_per_entity: int = DEFAULT_RETRIES
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)
    """Column comments, for the table's creation."""
    before: str = ""
    after: str = ""
    comment: str = ""
    pos: str = "pos"
    id: str = "id"
    shards: int = 0
    """How many topics share the rows of the base; 0 when this one has them all."""
    shard_by: str = ""
    """The column of the base that says whose a row is."""
    base_pos: str = "pos"
    """What the base table calls its position columns."""
    base_id: str = "id"
    tagged: bool = False
    """Several topics feed the table, so its rows carry their topic."""
    views: Mapping[str, str] = field(default_factory=dict)
    """The views that the transforms reach, dependencies first: name to text."""
    vars: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    """A query over the rows of a block, for figures of the user's own: `logs/<table>.sql`."""
    worker_tags: tuple[str, ...] = ()
    """What a worker must carry to be given the topic."""
    rebuilds: str = ""
    """The topic whose table this one is to replace; empty for every topic of a project."""

    @cached_property
    def table(self) -> str:
        return TopicName.parse(self.topic).table

    @cached_property
    def entry(self) -> str:
        """The topic as the lineage names it, without its shard."""
        return str(TopicName.parse(self.topic).whole())

    @cached_property
    def shard(self) -> Shard | None:
        """The part of the base's rows that are this topic's; None when all are."""
        number = TopicName.parse(self.topic).shard
        return None if number is None else Shard(self.shard_by, number, self.shards)

    def dealt(self) -> list[Definition]:
        """Give the definition of each shard; the one and only where there are none."""
        if not self.shards:
            return [self]
        return [replace(self, topic=f"{self.topic}:{number}") for number in range(self.shards)]

    def whole(self) -> Definition:
        """Give the definition for the rows of all shards together."""
        return replace(self, topic=self.entry, shards=0, shard_by="")

    @property
    def base(self) -> str:
        """The table whose new rows make the blocks."""
        return self.depends_on[0]

    @property
    def listed(self) -> tuple[str, ...]:
        """Every table that the entry names as read."""
        return self.depends_on + self.unwaited

    @property
    def repeat_or_default(self) -> int:
        return DEFAULT_REPEAT if self.repeat is None else self.repeat

    def as_dict(self) -> dict[str, Any]:
        """Give plain values that JSON can hold."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Definition:
        """Read what `as_dict` gave, from this version or an older one."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["processor"] = Processor(known["processor"])
        for name, value in known.items():
            if isinstance(value, list):
                known[name] = tuple(value)
        return cls(**known)


def _plain(value: Any) -> Any:
    match value:
        case Processor():
            return value.value
        case tuple():
            return list(value)
        case Mapping():
            return dict(value)
        case _:
            return value


def order(definitions: Iterable[Definition]) -> list[Definition]:
    """Put each topic behind those that build the tables it waits for; a cycle raises."""
    by_table: dict[str, list[Definition]] = {}
    for definition in definitions:
        by_table.setdefault(definition.table, []).append(definition)
    tables, found = _visit(by_table)
    if found:
        raise found[0]
    return [definition for table in tables for definition in _siblings(by_table[table])]


def _siblings(definitions: list[Definition]) -> list[Definition]:
    return sorted(definitions, key=_in_table) if len(definitions) > 1 else definitions


def _in_table(definition: Definition) -> tuple[str, int]:
    """Order the topics of a table: shard 10 comes behind shard 9."""
    shard = definition.shard
    return definition.entry, shard.number if shard else -1


def circles(definitions: Iterable[Definition]) -> list[LineageCycle]:
    """Find tables that wait for one another: each circle that a walk down the lineage meets."""
    by_table: dict[str, list[Definition]] = {}
    for definition in definitions:
        by_table.setdefault(definition.table, []).append(definition)
    return _visit(by_table)[1]


def _visit(by_table: Mapping[str, list[Definition]]) -> tuple[list[str], list[LineageCycle]]:
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


@dataclass(frozen=True)
class Changes:
    """How a project differs from what is applied in the store."""

    added: tuple[Definition, ...]
    changed: Mapping[str, tuple[str, ...]]
    """By topic: the fields that differ."""
    new: tuple[Definition, ...]
    """The changed definitions as they will be."""
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def lines(self) -> list[str]:
        """Say it to people, one topic a line."""
        return [
            *(f"+ {definition.topic} ({definition.processor})" for definition in self.added),
            *(f"~ {topic}: {', '.join(names)}" for topic, names in self.changed.items()),
            *(f"- {topic}" for topic in self.removed),
        ]


def difference(applied: Mapping[str, Definition], project: Mapping[str, Definition]) -> Changes:
    """Compare the project's definitions with the applied ones."""
    changed: dict[str, tuple[str, ...]] = {}
    for topic in sorted(applied.keys() & project.keys()):
        before, after = applied[topic].as_dict(), project[topic].as_dict()
        names = tuple(name for name in after if before.get(name) != after[name])
        if names:
            changed[topic] = names
    return Changes(
        added=tuple(project[topic] for topic in sorted(project.keys() - applied.keys())),
        changed=changed,
        new=tuple(project[topic] for topic in changed),
        removed=tuple(sorted(applied.keys() - project.keys())),
    )


def select(definitions: Mapping[str, Definition], selectors: Iterable[str]) -> set[str]:
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


def upstream(definitions: Mapping[str, Definition], topics: set[str]) -> set[str]:
    """Give the topics with all that build what they read."""
    builders: dict[str, set[str]] = {}
    for topic, definition in definitions.items():
        builders.setdefault(definition.table, set()).add(topic)
    return _follow(topics, lambda topic: _united(builders, definitions[topic].listed))


def downstream(definitions: Mapping[str, Definition], topics: set[str]) -> set[str]:
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
