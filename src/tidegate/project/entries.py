"""Entries of `lineage.yaml`: YAML with its line numbers, turned into fields or into problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import Problem
from tidegate.model.duration import parse_duration
from tidegate.model.lineage import DEFAULT_MAXSTEP, Processor, TopicName, is_table

_LARGEST_FILE = 10_000_000
_MOST_NODES = 100_000
"""Aliases can make a small file explode into a large one."""


@dataclass(frozen=True)
class Entry:
    """One entry of the lineage as written: its fields, and where each of them stands."""

    file: str
    line: int
    topic: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    def problem(self, field: str, message: str, *, warning: bool = False) -> Problem:
        return Problem(self.file, self.lines.get(field, self.line), field, message, warning)

    def get(self, name: str) -> Any:
        return self.fields.get(name, _FIELDS[name].default)


@dataclass(frozen=True)
class _Field:
    read: Callable[[Any], Any]
    default: Any


def read_entries(path: Path, shown: str) -> tuple[list[Entry], list[Problem]]:
    """Read one lineage file; what cannot be read is a problem, and the rest is still read."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return [], [Problem(shown, 0, "", "is larger than 10 MB; split it into lineage/*.yaml")]
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"is not valid YAML: {error.problem or error.context}"
        return [], [Problem(shown, mark.line + 1 if mark else 0, "", message)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [], [Problem(shown, 0, "", f"is not valid YAML: {str(error).splitlines()[0]}")]
    except OSError as error:
        return [], [Problem(shown, 0, "", f"cannot be read: {error.strerror}")]
    if root is None:
        return [], []
    if not isinstance(root, yaml.SequenceNode):
        message = "must be a list of entries, each beginning with `- table: db.table`"
        return [], [Problem(shown, root.start_mark.line + 1, "", message)]
    entries: list[Entry] = []
    problems: list[Problem] = []
    for node in root.value:
        entry, found = _entry(node, shown)
        problems += found
        if entry is not None:
            entries.append(entry)
    return entries, problems


def _entry(node: yaml.Node, file: str) -> tuple[Entry | None, list[Problem]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        return None, [Problem(file, line, "", "an entry must be a mapping with the key `table`")]
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for key_node, value_node in node.value:
        key = str(key_node.value)
        at = key_node.start_mark.line + 1
        try:
            if key in lines:
                raise ValueError("is given twice")
            lines[key] = at
            if key not in _FIELDS:
                raise ValueError(_unknown(key))
            fields[key] = _FIELDS[key].read(_plain(value_node, iter(range(_MOST_NODES))))
        except ValueError as error:
            problems.append(Problem(file, at, key, str(error)))
    if "table" not in lines:
        problems.append(Problem(file, line, "table", "is missing; write `table: db.table`"))
    topic = fields.get("table")
    entry = Entry(file, line, topic, fields, lines) if isinstance(topic, str) else None
    return entry, problems


def _unknown(key: str) -> str:
    if key in ("user", "updated_at"):
        return "is kept by Tidegate; leave it out"
    if key == "history":
        return "is reserved for a later version; leave it out"
    return f"unknown key; an entry may have: {', '.join(_FIELDS)}"


def _plain(node: yaml.Node, budget: Iterator[int]) -> Any:
    """Turn a node into plain values; texts stay as they were written."""
    if next(budget, None) is None:
        raise ValueError("is too large once its aliases are followed")
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value, budget) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, budget) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    return str(node.value)


def _topic(value: Any) -> str:
    name = TopicName.parse(_text(value))
    if name.shard is not None:
        raise ValueError(
            f"{value!r}: shards are not supported; write the topic without :{name.shard}"
        )
    return str(name)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value.strip()


def _names(value: Any) -> tuple[str, ...]:
    """Take a YAML list or, as in the seed, a text with commas."""
    if isinstance(value, list):
        items = [_text(item) for item in value]
    else:
        items = [item.strip() for item in _text(value).split(",")]
    names = tuple(item for item in items if item)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"names {sorted(twice)[0]} twice")
    return names


def _tables(value: Any) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        if not is_table(name):
            table = name.partition("#")[0].partition(":")[0]
            hint = f"; depend on the table, {table}" if is_table(table) else ""
            raise ValueError(f"{name!r} is not a table's name, db.table{hint}")
    return names


def _processor(value: Any) -> Processor:
    try:
        return Processor(_text(value).lower())
    except ValueError:
        known = ", ".join(Processor)
        raise ValueError(f"unknown processor {value!r}; there are: {known}") from None


def _duration(value: Any) -> int | None:
    text = _text(value)
    return parse_duration(text) if text else None


def _maxstep(value: Any) -> int:
    text = _text(value).replace("_", "").replace(",", "")
    if not text:
        return DEFAULT_MAXSTEP
    if not text.isdigit() or not 0 < int(text) < 2**31:
        raise ValueError(f"{value!r} is not a number of rows; write a whole number from 1 up")
    return int(text)


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of names to values")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {name: _text(item) for name, item in _mapping(value).items()}


def _checks(value: Any) -> dict[str, str]:
    checks = _texts(value)
    for name, condition in checks.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not a name for a check; use letters, digits and _")
        if not condition:
            raise ValueError(f"{name} has no condition")
    return checks


def _columns(value: Any) -> dict[str, str]:
    comments: dict[str, str] = {}
    for name, about in _mapping(value).items():
        given = about if isinstance(about, dict) else {"comment": about}
        unknown = sorted(set(given) - {"comment"})
        if unknown:
            raise ValueError(f"{name}: unknown key {unknown[0]!r}; a column may have: comment")
        comments[name] = _text(given.get("comment"))
    return comments


_FIELDS: dict[str, _Field] = {
    "table": _Field(_topic, ""),
    "depends_on": _Field(_tables, ()),
    "unwaited": _Field(_tables, ()),
    "processor": _Field(_processor, Processor.STEP),
    "transforms": _Field(_names, ()),
    "delay": _Field(_duration, None),
    "repeat": _Field(_duration, None),
    "maxstep": _Field(_maxstep, DEFAULT_MAXSTEP),
    "keys": _Field(_names, ()),
    "deleted": _Field(_text, ""),
    "checks": _Field(_checks, {}),
    "partition_by": _Field(_names, ()),
    "cluster_by": _Field(_names, ()),
    "properties": _Field(_texts, {}),
    "columns": _Field(_columns, {}),
    "before": _Field(_text, ""),
    "after": _Field(_text, ""),
    "comment": _Field(_text, ""),
    "pos": _Field(_text, "pos"),
    "id": _Field(_text, "id"),
}
