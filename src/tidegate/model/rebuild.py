"""Rebuilds: a table built anew beside the old one, and what that means to those who read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tidegate.model.execution import Block, Offset
from tidegate.model.lineage import Definition, Processor, TopicName, downstream
from tidegate.model.position import rfc3339
from tidegate.model.statements import pointed_at
from tidegate.model.viewedit import redirected

REBUILD = "Rebuild"
"""The processor of a block that publishes what was built beside."""
_SHADOW = re.compile(r"\w+\.\w+__rebuild_[0-9a-f]{12}", re.ASCII)


def shadow_name(table: str, token: str) -> str:
    """Name the topic and the table of a rebuild; the token makes sure that nobody else does."""
    return f"{table}__rebuild_{token.replace('-', '')[:12]}"


def is_shadow(table: str) -> bool:
    """Tell whether a table's name is one that a rebuild made up."""
    return _SHADOW.fullmatch(table) is not None


def shadow_of(definition: Definition, name: str) -> Definition:
    """Give the definition that fills another table with the very rows of this one.

    Whatever names the table, a view that reads what it built before or a statement that tidies it,
    means the new one. How its files are laid out matters only once it is published, and so does
    the column that tells the topics of a table apart.
    """
    own, beside = definition.table, TopicName.parse(name).table
    return replace(
        definition,
        topic=name,
        rebuilds=definition.topic,
        unwaited=tuple(beside if table == own else table for table in definition.unwaited),
        views={view: redirected(text, own, beside) for view, text in definition.views.items()},
        before=pointed_at(definition.before, own, beside),
        after=pointed_at(definition.after, own, beside),
        log="",
        partition_by=(),
        cluster_by=(),
        tagged=False,
    )


def publication(offset: Offset, version: int, versions: Mapping[str, int]) -> Block:
    """Give the block that publishes a shadow: it moves the topic nowhere.

    A block that is open, and that nothing was written of, is finished by it: same number, same
    bounds, for its rows are in the shadow too.
    """
    block = offset.block or Block(
        last=offset.last,
        next=offset.last,
        rows=0,
        seq=offset.seq + 1,
        full=offset.full,
        complete_to=offset.complete_to,
        definition_version=version,
    )
    return replace(block, definition_version=version, versions=versions)


def made_stale(definitions: Mapping[str, Definition], topic: str, at: int) -> dict[str, str]:
    """Say of each topic that is built from this one, near or far, that it no longer agrees."""
    readers = downstream(definitions, {topic}) - {topic} if topic in definitions else set()
    return {reader: _stale(definitions[reader], topic, at) for reader in readers}


def _stale(reader: Definition, topic: str, at: int) -> str:
    reload = reader.processor is Processor.RELOAD
    mends = "its next run mends it" if reload else f"mend it: tidegate rebuild {reader.topic}+"
    return f"stale: {topic} was rebuilt at {rfc3339(at)}; {mends}"
