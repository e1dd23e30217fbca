"""Reads lineage.yaml: entries turned into definitions, with all that is wrong in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from tidegate.errors import Problem
from tidegate.model.entities import MOST_WAITING
from tidegate.project.folder import Found, KindReader, Shared, stands_already
from tidegate.project.yaml import (
    Duration,
    Entry,
    EntryFields,
    Form,
    Names,
    Scalar,
    Share,
    Text,
    Texts,
    as_given,
    as_mapping,
    as_names,
    as_text,
    as_texts,
    counted,
    short,
)
from tidegate.sql.reading import ViewCycleError, ViewText, reachable
from tidegate.tables.checks import entry_problems, lineage_problems, log_problems
from tidegate.tables.definition import (
    DEFAULT_FAILED_ROWS,
    DEFAULT_MAXSTEP,
    DEFAULT_RETRIES,
    MOST_SHARDS,
    Processor,
    TableDefinition,
    TopicName,
    is_table,
)

_COLUMN = re.compile(r"[^`\x00-\x1f]{1,255}")


def _topic(value: Any) -> str:
    name = TopicName.parse(as_text(value))
    if name.shard is not None:
        raise ValueError(
            f"{value!r}: shards are not entries of their own; write {name.whole()}"
            " once, with shards: and shard_by:"
        )
    return str(name)


def _tables(value: Any) -> tuple[str, ...]:
    names = as_names(value)
    for name in names:
        if not is_table(name):
            table = name.partition("#")[0].partition(":")[0]
            hint = f"; depend on the table, {table}" if is_table(table) else ""
            raise ValueError(f"{short(name)} is not a table's name, db.table{hint}")
    return names


def _processor(value: Any) -> Processor:
    text = as_given(value).lower()
    try:
        return Processor(text)
    except ValueError:
        known = ", ".join(Processor)
        raise ValueError(f"unknown processor {short(value)}; there are: {known}") from None


def _views(value: Any) -> tuple[str, ...]:
    return tuple(name.lower() for name in as_names(value))


def _column(value: Any) -> str:
    name = as_given(value)
    if not _COLUMN.fullmatch(name):
        raise ValueError(f"{short(name)} is not a column's name")
    return name


def _columns(value: Any) -> tuple[str, ...]:
    return tuple(_column(name) for name in as_names(value))


def _checks(value: Any) -> dict[str, str]:
    checks = as_texts(value)
    for name, condition in checks.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{short(name)} is not a name for a check; use letters, digits, _")
        if not condition:
            raise ValueError(f"{name} has no condition")
    return checks


def _comments(value: Any) -> dict[str, str]:
    comments: dict[str, str] = {}
    for name, about in as_mapping(value).items():
        given = about if isinstance(about, dict) else {"comment": about}
        unknown = sorted(set(given) - {"comment"})
        if unknown:
            raise ValueError(f"{name}: unknown key {unknown[0]!r}; a column may have: comment")
        comments[name] = as_text(given.get("comment"))
    return comments


_Names = list[str] | str | None
_Tables = Annotated[tuple[str, ...], BeforeValidator(_tables, json_schema_input_type=_Names)]
_Views = Annotated[tuple[str, ...], BeforeValidator(_views, json_schema_input_type=_Names)]
_Column = Annotated[str, BeforeValidator(_column, json_schema_input_type=str | None)]
_Columns = Annotated[tuple[str, ...], BeforeValidator(_columns, json_schema_input_type=_Names)]
_Commented = dict[str, dict[str, Scalar] | Scalar] | None


class TableFields(EntryFields):
    """What an entry of lineage.yaml may say of a table."""

    refused: ClassVar[Mapping[str, str]] = {
        "user": "is kept by Tidegate; leave it out",
        "updated_at": "is kept by Tidegate; leave it out",
        "history": "is reserved for a later version; leave it out",
    }

    table: Annotated[str, BeforeValidator(_topic)] = Field(examples=["db.table"])
    depends_on: _Tables = ()
    unwaited: _Tables = ()
    processor: Annotated[
        Processor, BeforeValidator(_processor, json_schema_input_type=Processor | None)
    ] = Processor.STEP
    transforms: _Views = ()
    delay: Duration | None = None
    repeat: Duration | None = None
    maxstep: Annotated[int, counted("rows", 1, 2**31 - 1)] = DEFAULT_MAXSTEP
    keys: _Columns = ()
    deleted: Text = ""
    checks: Annotated[
        dict[str, str], BeforeValidator(_checks, json_schema_input_type=dict[str, Scalar] | None)
    ] = Field({})
    max_failed_rows: Annotated[int, counted("rows", 0, MOST_WAITING)] = DEFAULT_FAILED_ROWS
    max_failed_share: Share = 1.0
    max_retries_per_entity: Annotated[int, counted("tries", 0, 2**31 - 1)] = DEFAULT_RETRIES
    partition_by: _Columns = ()
    cluster_by: _Columns = ()
    properties: Texts = Field({})
    columns: Annotated[
        dict[str, str], BeforeValidator(_comments, json_schema_input_type=_Commented)
    ] = Field({})
    before: Text = ""
    after: Text = ""
    comment: Text = ""
    pos: _Column = "pos"
    id: _Column = "id"
    worker_tags: Names = ()
    shards: Annotated[int, counted("shards", 1, MOST_SHARDS)] = 0
    shard_by: _Column = ""


def _read(written: Sequence[Entry[TableFields]], shared: Shared) -> Found:
    """Turn the entries of a lineage into the definitions of its topics."""
    entries, problems = _named_once(written)
    plain = {topic: _definition(entry.fields, shared) for topic, entry in entries.items()}
    definitions = _linked(plain)
    problems += log_problems(shared.logs, definitions)
    for topic, entry in entries.items():
        problems += entry_problems(entry, definitions[topic], shared.views, shared.variables)
    problems += lineage_problems(entries, definitions)
    flows = [
        (shard, entries[topic])
        for topic, definition in definitions.items()
        for shard in definition.sharded()
    ]
    return Found(flows, problems)


def _named_once(
    written: Sequence[Entry[TableFields]],
) -> tuple[dict[str, Entry[TableFields]], list[Problem]]:
    entries: dict[str, Entry[TableFields]] = {}
    first: dict[str, Entry[TableFields]] = {}
    problems: list[Problem] = []
    for entry in written:
        topic = entry.fields.table
        # Spark does not tell the case of a table; a tag is ours.
        name = TopicName.parse(topic)
        before = first.setdefault(str(replace(name, table=name.table.lower())), entry)
        if before is entry:
            entries[topic] = entry
        else:
            problems.append(entry.problem("table", stands_already(topic, before)))
    return entries, problems


def _definition(fields: TableFields, shared: Shared) -> TableDefinition:
    texts = shared.views.texts
    names = _reachable([name for name in fields.transforms if name in texts], texts)
    used = {name for view in names for name in texts[view].parameters}
    given = dict(iter(fields))
    topic, comments = given.pop("table"), given.pop("columns")
    log = shared.logs.get(TopicName.parse(topic).table.lower())
    return TableDefinition(
        topic=topic,
        comments=comments,
        **given,
        views={name: texts[name].text for name in names},
        vars={name: value for name, value in shared.settings.vars.items() if name in used},
        log=log.text if log else "",
    )


def _reachable(names: list[str], views: Mapping[str, ViewText]) -> list[str]:
    try:
        return reachable(names, views)
    except ViewCycleError:
        # A circle is reported by its own rule; here it only must not stop the reading.
        return names


def _linked(plain: Mapping[str, TableDefinition]) -> dict[str, TableDefinition]:
    """Let each know what its base calls the position columns, and whether it has siblings."""
    tagged = {one.table for one in plain.values() if TopicName.parse(one.topic).tag is not None}
    by_table = {one.table: one for one in plain.values()}
    linked: dict[str, TableDefinition] = {}
    for topic, one in plain.items():
        base = by_table.get(one.base) if one.depends_on else None
        if base is not None and base.processor is not Processor.RELOAD:
            one = replace(one, base_pos=base.pos, base_id=base.id)
        linked[topic] = replace(one, tagged=one.table in tagged)
    return linked


TABLES = KindReader("topic", Form(("lineage", "lineage/*"), TableFields, listed=True), _read)
