"""Whether a table may be cut into other shards: only where each row keeps its one topic.

A position says which rows a topic has taken, among those that are its own. Cut in another way, the
same positions would mean other rows, some taken twice and some never, unless all of them are alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.model.execution import Offset
from tidegate.model.lineage import Definition, Processor
from tidegate.model.position import START


def misfit(
    before: Definition,
    now: Definition,
    offsets: Mapping[str, Offset],
    waiting: Mapping[str, int],
) -> str:
    """Say why a table that was cut as before cannot go on as it would be now; empty if it can."""
    if _cut(before) == _cut(now) or before.processor is Processor.SOURCE:
        return ""
    old = {topic: offsets.get(topic) or Offset(topic, START) for topic in _topics(before)}
    if not any(offset.seq or offset.block or offset.last > START for offset in old.values()):
        return ""
    was = f"{now.entry} was built {_words(before)}"
    back = f"go back to {_setting(before)}"
    unfinished = [topic for topic, offset in old.items() if offset.block is not None]
    if unfinished:
        return f"{was}, and {unfinished[0]} has a block that is not finished; {back} and run it"
    for topic in old:
        if waiting.get(topic):
            return (
                f"{was}, and {waiting[topic]:,} rows of {topic} that failed wait to be tried again;"
                f" {back} until they are in or dead"
            )
    ends = sorted({offset.last for offset in old.values()})
    if len(ends) > 1:
        return (
            f"{was}, and its topics stand at different positions, from {ends[0]} to {ends[-1]};"
            f" {back} and run them to the same one"
        )
    (end,) = ends
    new = {topic: (offsets.get(topic) or Offset(topic, START)).last for topic in _topics(now)}
    astray = [topic for topic, last in new.items() if last != end]
    if not astray:
        return ""
    force = " --force" if any(new[topic] > end for topic in astray) else ""
    others = f", and so the other {len(astray) - 1}" if len(astray) > 1 else ""
    return (
        f"{was} up to {end}, and {astray[0]} stands at {new[astray[0]]}: rows would be doubled or"
        f" lost; {back}, or put it there: tidegate offsets set {astray[0]} --last"
        f" {end.pos},{end.id}{force}{others}"
    )


def _cut(definition: Definition) -> tuple[int, str]:
    return definition.shards, definition.shard_by.lower()


def _topics(definition: Definition) -> list[str]:
    entry = definition.entry
    return [f"{entry}:{number}" for number in range(definition.shards)] or [entry]


def _words(definition: Definition) -> str:
    if not definition.shards:
        return "without shards"
    return f"in {definition.shards} shards by {definition.shard_by}"


def _setting(definition: Definition) -> str:
    if not definition.shards:
        return "no shards"
    return f"shards: {definition.shards}, shard_by: {definition.shard_by}"
