"""What must hold for a lineage as a whole: names, circles, bases, views. Read without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlglot import TokenType, exp, parse
from sqlglot.errors import SqlglotError

from tidegate.errors import Problem
from tidegate.project.folder import Views
from tidegate.project.yaml import Entry
from tidegate.sql.editing import calls_block
from tidegate.sql.reading import (
    DIALECT,
    Finding,
    ViewCycleError,
    ViewText,
    line_at,
    reachable,
    statements,
    tables_read,
    tokens_of,
)
from tidegate.sql.rules import doubled_names, given_columns, step_findings
from tidegate.tables.definition import TOPIC_COLUMN, Processor, TableDefinition
from tidegate.tables.graph import circles

_NOT_FOR_SOURCES = (
    *("depends_on", "unwaited", "transforms", "keys", "deleted", "checks", "before", "after"),
    *("partition_by", "cluster_by", "properties", "columns", "shards", "shard_by"),
)


def log_problems(
    logs: Mapping[str, ViewText], definitions: Mapping[str, TableDefinition]
) -> Iterator[Problem]:
    """Judge the log queries by the tables that they are for."""
    built = {
        definition.table.lower()
        for definition in definitions.values()
        if definition.processor is not Processor.SOURCE
    }
    for table, log in logs.items():
        shown = f"logs/{log.name}.sql"
        if table not in built:
            yield Problem(
                shown, 0, "", f"nothing builds a table {log.name}; name it <db.table>.sql"
            )
        elif table not in {name.lower() for name in log.tables}:
            yield Problem(shown, 1, "", f"does not read {log.name}, the table that it is for")
        for parameter in sorted(log.parameters):
            yield Problem(shown, 0, f":{parameter}", "parameters do not go into a log query")


def entry_problems(
    entry: Entry[Any],
    definition: TableDefinition,
    views: Views,
    variables: Mapping[str, Any] | None,
) -> list[Problem]:
    """Judge one entry on its own; without variables nothing is said of `:name`."""
    problems = [entry.problem(field, message) for field, message in _fields(entry, definition)]
    for name in definition.transforms:
        if name not in views.files:
            message = f"there is no view {name}; write it as views/{name}.sql"
            problems.append(entry.problem("transforms", message))
    known: list[str] = []
    for name in filter(views.texts.__contains__, definition.transforms):
        try:
            reachable([name], views.texts)
            known.append(name)
        except ViewCycleError as error:
            problems.append(entry.problem("transforms", str(error)))
    names = reachable(known, views.texts)
    for name in names:
        problems += _view_problems(name, views, variables)
    for name in known:
        problems += _found(doubled_names(views.texts[name]), views)
    match definition.processor:
        case _ if "processor" in entry.wrong:
            # It is neither of them, and what it would have to keep is not known.
            pass
        case Processor.STEP if definition.depends_on:
            problems += _step_problems(definition, known, views)
        case Processor.RELOAD:
            problems += _reload_problems(names, views)
    if definition.checks:
        problems += _unsteady(entry, names, views)
    problems += _unknown_columns(entry, definition, known, views)
    problems += _unlisted(definition, known, views)
    return problems


def _fields(entry: Entry[Any], definition: TableDefinition) -> Iterator[tuple[str, str]]:
    """Judge which fields go together."""
    if definition.pos.lower() == definition.id.lower():
        yield "id", f"is {definition.id}, and so is pos; a position needs two columns"
    if definition.processor is Processor.SOURCE:
        for name in _NOT_FOR_SOURCES:
            if getattr(entry.fields, name):
                yield name, "does not go with processor: source, which nothing here builds"
        return
    if entry.lacks("depends_on"):
        yield "depends_on", "is missing; name the base table, and the others to wait for"
    if entry.lacks("transforms"):
        yield "transforms", "is missing; name the views that give the rows"
    for name in sorted(set(definition.depends_on) & set(definition.unwaited)):
        yield "unwaited", f"{name} is in depends_on too; it is either waited for or not"
    if definition.deleted and entry.lacks("keys"):
        yield "deleted", "needs keys: it says which rows remove their key"
    if definition.partition_by and definition.cluster_by:
        yield "cluster_by", "does not go with partition_by; use one of them"
    if definition.processor is Processor.RELOAD and definition.keys:
        yield "keys", "does not go with processor: reload, which writes the whole table anew"
    yield from _shards(entry, definition)
    for name, text in (("before", definition.before), ("after", definition.after)):
        try:
            statements(text)
        except ValueError as error:
            yield name, str(error)
            continue
        if definition.shards and calls_block(text):
            message = (
                "calls block(), which does not go with shards: outside of a view it is true for"
                " the rows of all of them"
            )
            yield name, message
    for name, condition in definition.checks.items():
        if not _is_condition(condition):
            yield "checks", f"{name}: {condition!r} does not read as one condition in SQL"
    if definition.deleted and not _is_condition(definition.deleted):
        yield "deleted", f"{definition.deleted!r} does not read as one condition in SQL"


def _shards(entry: Entry[Any], definition: TableDefinition) -> Iterator[tuple[str, str]]:
    """Judge what goes with shards."""
    if definition.shard_by and entry.lacks("shards"):
        yield "shard_by", "needs shards: how many topics the rows are dealt to"
    if not definition.shards:
        return
    if entry.lacks("shard_by"):
        yield "shards", "needs shard_by: the column of the base table that says whose a row is"
    if definition.processor is Processor.RELOAD:
        yield "shards", "does not go with processor: reload, which writes the whole table anew"
    if definition.keys:
        message = "does not go with keys: the newest row of a key could be in another shard"
        yield "shards", message


def _unknown_columns(
    entry: Entry[Any], definition: TableDefinition, known: Sequence[str], views: Views
) -> Iterator[Problem]:
    """Name columns of the entry that its views do not give, as far as their text tells."""
    if not known:
        return
    given = given_columns(views.texts[known[0]])
    if given is None:
        return
    named = {
        "keys": definition.keys,
        "partition_by": definition.partition_by,
        "cluster_by": definition.cluster_by,
        "deleted": _columns_in(definition.deleted),
        "checks": tuple(c for text in definition.checks.values() for c in _columns_in(text)),
    }
    ours = {*given, *((TOPIC_COLUMN,) if definition.tagged else ())}
    for field, columns in named.items():
        for column in dict.fromkeys(columns):
            if column.lower() not in ours:
                message = (
                    f"names the column {column}, which the view {known[0]} does not give; it gives:"
                    f" {', '.join(sorted(given))}"
                )
                yield entry.problem(field, message)


def _columns_in(condition: str) -> tuple[str, ...]:
    """Name the columns of a condition; what is behind a dot, or in a lambda, may be a field."""
    if not condition or not _is_condition(condition):
        return ()
    (root,) = parse(condition, read=DIALECT)
    if root is None or root.find(exp.Lambda, exp.Subquery, exp.Select) is not None:
        return ()
    return tuple(one.name for one in root.find_all(exp.Column) if not one.table)


def _is_condition(text: str) -> bool:
    try:
        alone = parse(text, read=DIALECT)
        # A comment at its end would swallow what is put behind it.
        within = parse(f"SELECT coalesce(({text}), false)", read=DIALECT)
    except (SqlglotError, RecursionError):
        return False
    return len(alone) == len(within) == 1 and isinstance(alone[0], exp.Condition)


def _view_problems(
    name: str, views: Views, variables: Mapping[str, Any] | None
) -> Iterator[Problem]:
    view = views.texts[name]
    if variables is not None:
        for parameter in sorted(view.parameters - set(variables)):
            line = _line(view.text, TokenType.COLON, parameter)
            message = f":{parameter} is not in [vars] of tidegate.toml"
            yield views.problem(name, line, f":{parameter}", message)
    for read, line in view.views.items():
        if read not in views.files:
            message = f"reads {read}, and there is no views/{read}.sql; tables are named db.table"
            yield views.problem(name, line, read, message)


def _step_problems(
    definition: TableDefinition, transforms: list[str], views: Views
) -> Iterator[Problem]:
    for transform in transforms:
        findings = step_findings(
            transform,
            views.texts,
            base=definition.base,
            pos=definition.pos,
            id=definition.id,
            keyed=bool(definition.keys),
            sharded=bool(definition.shards),
        )
        yield from _found(findings, views)


def _found(findings: Iterable[Finding], views: Views) -> Iterator[Problem]:
    for finding in findings:
        yield views.problem(finding.view, finding.line, "", finding.message)


def _reload_problems(names: Iterable[str], views: Views) -> Iterator[Problem]:
    for name in names:
        for call in sorted(views.texts[name].calls):
            line = _line(views.texts[name].text, TokenType.L_PAREN, call, before=True)
            message = f"{call}() is for a Step; a Reload reads its tables whole"
            yield views.problem(name, line, "", message)


def _line(text: str, kind: TokenType, word: str, *, before: bool = False) -> int:
    """Find the line where a word stands behind a token of that kind, or before one."""
    for first, second in pairwise(tokens_of(text)):
        mark, named = (second, first) if before else (first, second)
        if mark.token_type is kind and named.text.lower() == word.lower():
            return line_at(text, named.start)
    return 1


def _unsteady(entry: Entry[Any], names: Iterable[str], views: Views) -> Iterator[Problem]:
    for name in names:
        for function in sorted(views.texts[name].nondeterministic):
            message = (
                f"does not go with {function}() in {views.files[name]}:"
                " a row must give the same answer each time it is checked"
            )
            yield entry.problem("checks", message)


def _unlisted(
    definition: TableDefinition, transforms: list[str], views: Views
) -> Iterator[Problem]:
    listed = {name.lower() for name in (*definition.listed, definition.table)}
    for table, (view, line) in tables_read(transforms, views.texts).items():
        if table.lower() not in listed:
            message = (
                f"{definition.topic} reads {table}, which is neither in its depends_on nor in its"
                " unwaited; add it to one of them"
            )
            yield views.problem(view, line, table, message, warning=True)


def lineage_problems(
    entries: Mapping[str, Entry[Any]], definitions: Mapping[str, TableDefinition]
) -> list[Problem]:
    """Judge how the entries fit together."""
    problems = [
        *_spellings(entries, definitions),
        *_siblings(entries, definitions),
        *_bases(entries, definitions),
    ]
    for circle in circles(definitions.values()):
        first = next(d.topic for d in definitions.values() if d.table == circle.tables[0])
        problems.append(entries[first].problem("depends_on", str(circle)))
    return problems


def _spellings(
    entries: Mapping[str, Entry[Any]], definitions: Mapping[str, TableDefinition]
) -> Iterator[Problem]:
    """Require that a table is spelled in one way: Spark does not tell case, folders do."""
    spelled: dict[str, str] = {}
    for definition in definitions.values():
        spelled.setdefault(definition.table.lower(), definition.table)
    for topic, definition in definitions.items():
        for name, tables in (
            ("table", (definition.table,)),
            ("depends_on", definition.depends_on),
            ("unwaited", definition.unwaited),
        ):
            for table in tables:
                first = spelled.setdefault(table.lower(), table)
                if table != first:
                    message = f"{table} is spelled {first} elsewhere; spell it the same everywhere"
                    yield entries[topic].problem(name, message)


def _siblings(
    entries: Mapping[str, Entry[Any]], definitions: Mapping[str, TableDefinition]
) -> Iterator[Problem]:
    """Judge the topics that feed one table: they must agree on its shape."""
    first: dict[str, TableDefinition] = {}
    for topic, definition in definitions.items():
        other = first.setdefault(definition.table, definition)
        if other is definition:
            continue
        entry = entries[topic]
        if definition.processor is not Processor.STEP or other.processor is not Processor.STEP:
            message = (
                f"{definition.table} is written by {other.topic} too; only Steps may share one"
            )
            yield entry.problem("processor", message)
        for name in ("keys", "pos", "id", "partition_by", "cluster_by"):
            if getattr(definition, name) != getattr(other, name):
                yield entry.problem(name, f"must be the same as that of {other.topic}")
        if definition.deleted or other.deleted:
            message = (
                f"does not go with several topics of {definition.table}: a key that one removes"
                " could come back by an older row of another"
            )
            yield entry.problem("deleted", message)


def _bases(
    entries: Mapping[str, Entry[Any]], definitions: Mapping[str, TableDefinition]
) -> Iterator[Problem]:
    """Judge what may be a base: landed tables, appended ones, keyed ones for a keyed Step only."""
    by_table = {definition.table: definition for definition in definitions.values()}
    for topic, definition in definitions.items():
        if definition.processor is not Processor.STEP or not definition.depends_on:
            continue
        base = by_table.get(definition.base)
        if base is None:
            continue
        entry = entries[topic]
        if base.processor is Processor.RELOAD:
            message = (
                f"{base.table} is built by Reload and has no position to read it by; put another"
                " table first, or build this one by Reload"
            )
            yield entry.problem("depends_on", message)
        if base.keys and not definition.keys:
            message = (
                f"{base.table} has keys, so its rows change after they were read; as a base it is"
                " for a Step with keys only"
            )
            yield entry.problem("depends_on", message)
