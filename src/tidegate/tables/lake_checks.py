"""What is wrong with tables by what is in the lake and in the store. Read without a JVM.

A table may be cut into other shards only where each row keeps its one topic. A position says which
rows a topic has taken, among those that are its own. Cut in another way, the same positions would
mean other rows, some taken twice and some never, unless all of them are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tidegate.errors import LakeError, Problem, StoreError
from tidegate.model.entities import FailedState
from tidegate.model.flow import Changes
from tidegate.model.looks import Look
from tidegate.model.position import START, Offset
from tidegate.ports.store import Store
from tidegate.project.folder import Project
from tidegate.project.yaml import Entry
from tidegate.settings import FILE
from tidegate.spark.looks import Tables, position_columns
from tidegate.tables.definition import Processor, TableDefinition, as_table, tables_in


def outside_problems(
    project: Project, tables: Tables, seen: Callable[[], Iterable[str]]
) -> list[Problem]:
    """Hold the tables that nobody here builds against the lake, and against what was there once."""
    entries, definitions = project.entries, tables_in(project.definitions)
    built = {d.table for d in definitions.values() if d.processor is not Processor.SOURCE}
    looks: dict[str, Look | LakeError] = {}
    for table in {table for d in definitions.values() for table in d.listed} - built:
        source = definitions.get(table)
        try:
            looks[table] = _glance(tables, table, *((source.pos, source.id) if source else ()))
        except LakeError as error:
            looks[table] = error
    sharded = {d.base for d in definitions.values() if d.shard and d.depends_on}
    columns = {table: _columns(tables, table) for table in sharded}
    misfits = shard_problems(entries, definitions, columns)
    # What a flow of another kind lands may not be there yet.
    landed = {one.flow.lane for one in project.definitions.values()}
    problems = lake_problems(entries, definitions, looks, landed)
    if not problems:
        return misfits
    try:
        return [*misfits, *lake_problems(entries, definitions, looks, {*landed, *seen()})]
    except StoreError as error:
        return [*misfits, *problems, Problem(FILE, 0, "store.url", str(error))]


def _glance(tables: Tables, table: str, pos: str = "pos", id: str = "id") -> Look:
    """See whether a table is there and can be read by position, without its statistics."""
    found = tables.open(table)
    if found is None:
        return Look(table, 0, exists=False)
    return Look(table, 0, positioned=position_columns(found, pos, id) is not None)


def _columns(tables: Tables, table: str) -> list[str]:
    """Name the columns of a table; of one that cannot be read, none: its look says why."""
    try:
        return tables.column_names(table)
    except LakeError:
        return []


def lake_problems(
    entries: Mapping[str, Entry[Any]],
    definitions: Mapping[str, TableDefinition],
    looks: Mapping[str, Look | LakeError],
    seen: Iterable[str],
) -> list[Problem]:
    """Judge the tables that nobody here builds by what is in the lake, and what was there."""
    known = {table.lower() for table in (*(d.table for d in definitions.values()), *seen)}
    problems: list[Problem] = []
    for topic, definition in definitions.items():
        for table in definition.listed:
            look = looks.get(table)
            if look is None:
                continue
            message = ""
            if isinstance(look, LakeError):
                message = str(look)
            elif not look.exists and table.lower() not in known:
                message = (
                    f"{table} is neither built here, nor declared with processor: source, nor in"
                    " the lake"
                )
            elif look.exists and not look.positioned and _is_base(definition, table):
                columns = f"{definition.base_pos} (bigint or timestamp) and {definition.base_id}"
                message = f"{table} has no columns {columns} to be read by position"
            if message:
                field = "depends_on" if table in definition.depends_on else "unwaited"
                problems.append(entries[topic].problem(field, message, in_lake=True))
    return problems


def shard_problems(
    entries: Mapping[str, Entry[Any]],
    definitions: Mapping[str, TableDefinition],
    columns: Mapping[str, Collection[str]],
) -> list[Problem]:
    """Require that bases which are in the lake have the columns that their rows are sharded by."""
    problems: list[Problem] = []
    for topic, definition in definitions.items():
        names = columns.get(definition.base) if definition.shard and definition.depends_on else None
        if names and definition.shard_by.lower() not in {name.lower() for name in names}:
            message = f"{definition.base} has no column {definition.shard_by}"
            problems.append(entries[topic].problem("shard_by", message, in_lake=True))
    return problems


def _is_base(definition: TableDefinition, table: str) -> bool:
    return definition.processor is Processor.STEP and definition.depends_on[:1] == (table,)


def resharding_problems(project: Project, changes: Changes, store: Store) -> list[Problem]:
    """Refuse other shards over a table whose topics have taken rows already."""
    brought = tables_in({one.flow.id: one for one in changes.brought})
    changed = {definition.entry: definition for definition in brought.values()}
    if not changed:
        return []
    offsets = store.offsets.all()
    counts = store.failures.counts()
    waiting = {topic: states.get(FailedState.WAITING, 0) for topic, states in counts.items()}
    problems: list[Problem] = []
    for definition in changed.values():
        before = _last_applied(store, definition.entry, offsets)
        message = misfit(before, definition, offsets, waiting) if before else ""
        if message:
            problems.append(project.entries[definition.topic].problem("shards", message))
    return problems


def _last_applied(store: Store, entry: str, topics: Iterable[str]) -> TableDefinition | None:
    """Give the definition of an entry that was applied last, of one that was removed too."""
    own = [topic for topic in topics if topic.partition(":")[0] == entry]
    versions = [applied for topic in own for applied in store.definitions.history(topic)]
    newest = max(versions, key=lambda applied: applied.updated_at, default=None)
    return as_table(newest.definition) if newest else None


def misfit(
    before: TableDefinition,
    now: TableDefinition,
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


def _cut(definition: TableDefinition) -> tuple[int, str]:
    return definition.shards, definition.shard_by.lower()


def _topics(definition: TableDefinition) -> list[str]:
    entry = definition.entry
    return [f"{entry}:{number}" for number in range(definition.shards)] or [entry]


def _words(definition: TableDefinition) -> str:
    if not definition.shards:
        return "without shards"
    return f"in {definition.shards} shards by {definition.shard_by}"


def _setting(definition: TableDefinition) -> str:
    if not definition.shards:
        return "no shards"
    return f"shards: {definition.shards}, shard_by: {definition.shard_by}"
