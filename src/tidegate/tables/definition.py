"""A topic of the lineage: its name, its table, and the entry that says how it is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tidegate.model.duration import HOUR
from tidegate.model.flow import Definition, Flow, Kind
from tidegate.model.position import Block
from tidegate.sql.editing import Shard

DEFAULT_REPEAT = HOUR
DEFAULT_MAXSTEP = 1_000_000
DEFAULT_FAILED_ROWS = 1_000
DEFAULT_RETRIES = 100
TOPIC_COLUMN = "_topic"
"""The column that a table fed by several topics gets, with the topic of each row."""
MOST_SHARDS = 64
REBUILD = "Rebuild"
"""The processor of a block that publishes what was built beside."""
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


def is_table(text: str) -> bool:
    """Tell whether the text is a table's name, `db.table`."""
    return _TABLE.fullmatch(text) is not None


@dataclass(frozen=True)
class TableDefinition:
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
    def flow(self) -> Flow:
        return Flow(self.topic, Kind.TABLE, self.table, self.worker_tags)

    @cached_property
    def entry(self) -> str:
        """The topic as the lineage names it, without its shard."""
        return str(TopicName.parse(self.topic).whole())

    @cached_property
    def shard(self) -> Shard | None:
        """The part of the base's rows that are this topic's; None when all are."""
        number = TopicName.parse(self.topic).shard
        return None if number is None else Shard(self.shard_by, number, self.shards)

    def sharded(self) -> list[TableDefinition]:
        """Give the definition of each shard; the one and only where there are none."""
        if not self.shards:
            return [self]
        return [replace(self, topic=f"{self.topic}:{number}") for number in range(self.shards)]

    def whole(self) -> TableDefinition:
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

    def source(self) -> dict[str, Any]:
        return {
            "type": "tables",
            "depends_on": list(self.depends_on),
            "unwaited": list(self.unwaited),
            "transforms": list(self.transforms),
            "delay": self.delay,
            "maxstep": self.maxstep,
        }

    def sink(self) -> dict[str, Any]:
        return {
            "type": "table",
            "table": self.table,
            "processor": self.processor.value,
            "keys": list(self.keys),
            "checks": dict(self.checks),
        }

    def may_finish(self, block: Block[Any], declared: TableDefinition) -> bool:
        """Tell whether the block means the same rows to both; a publication is of one alone."""
        return block.processor != REBUILD and self._reads() == declared._reads()

    def _reads(self) -> tuple[object, ...]:
        return (self.processor, self.depends_on[:1], self.base_pos, self.base_id, self.shard)

    def as_dict(self) -> dict[str, Any]:
        """Give plain values that JSON can hold."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableDefinition:
        """Read what `as_dict` gave, from this version or an older one."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["processor"] = Processor(known["processor"])
        for name, value in known.items():
            if isinstance(value, list):
                known[name] = tuple(value)
        return cls(**known)


def as_table(definition: Definition) -> TableDefinition:
    """Take a definition for a table's: those are all that this kind is ever given."""
    assert isinstance(definition, TableDefinition), f"{definition.flow.id} is no table"
    return definition


def tables_in(definitions: Mapping[str, Definition]) -> dict[str, TableDefinition]:
    """Take those of tables out of the definitions of all kinds."""
    return {flow: one for flow, one in definitions.items() if isinstance(one, TableDefinition)}


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
