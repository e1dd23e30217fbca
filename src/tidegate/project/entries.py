"""Entries of `lineage.yaml`: YAML with its line numbers, turned into fields or into problems."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import Problem
from tidegate.model.duration import parse_duration
from tidegate.model.failed import MOST_WAITING
from tidegate.model.lineage import (
    DEFAULT_FAILED_ROWS,
    DEFAULT_MAXSTEP,
    DEFAULT_RETRIES,
    MOST_SHARDS,
    Processor,
    TopicName,
    is_table,
)

_LARGEST_FILE = 2_000_000
_MOST_VALUES = 1_000_000
"""Aliases can make a small file explode into a large one."""
_DEEPEST = 30
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NULL = "tag:yaml.org,2002:null"
_COLUMN = re.compile(r"[^`\x00-\x1f]{1,255}")


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

    def lacks(self, name: str) -> bool:
        """Tell whether a field is missing or empty; one that did not read has its own problem."""
        return not self.get(name) and (name in self.fields or name not in self.lines)


@dataclass(frozen=True)
class _Field:
    read: Callable[[Any], Any]
    default: Any


def read_entries(path: Path, shown: str) -> tuple[list[Entry], list[Problem]]:
    """Read one lineage file; what cannot be read is a problem, and the rest is still read."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return [], [Problem(shown, 0, "", "is larger than 2 MB; split it into lineage/*.yaml")]
        root = _compose(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"is not valid YAML: {error.problem or error.context}"
        return [], [Problem(shown, mark.line + 1 if mark else 0, "", message)]
    except UnicodeDecodeError:
        return [], [Problem(shown, 0, "", "is not UTF-8 text")]
    except yaml.YAMLError as error:
        return [], [Problem(shown, 0, "", f"is not valid YAML: {str(error).splitlines()[0]}")]
    except OSError as error:
        return [], [Problem(shown, 0, "", f"cannot be read: {error.strerror}")]
    if root is None or root.tag == _NULL:
        return [], []
    if not isinstance(root, yaml.SequenceNode):
        message = "must be a list of entries, each beginning with `- table: db.table`"
        return [], [Problem(shown, root.start_mark.line + 1, "", message)]
    entries: list[Entry] = []
    problems: list[Problem] = []
    reader = _Reader()
    for node in root.value:
        try:
            entry, found = _entry(node, shown, reader)
        except _TooLarge as error:
            return entries, [*problems, Problem(shown, node.start_mark.line + 1, "", str(error))]
        problems += found
        if entry is not None:
            entries.append(entry)
    return entries, problems


def _compose(text: str) -> yaml.Node | None:
    depth = 0
    # The composer calls itself for each level, and has no guard against a file without end to it.
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_DEEPEST} lists or mappings stand within each other",
                problem_mark=event.start_mark,
            )
    root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    return root


class _TooLarge(Exception):
    """The file says more than a lineage can, by aliases that are followed again and again."""

    def __init__(self) -> None:
        super().__init__("is too large once its aliases are followed")


class _Reader:
    """Turns nodes into plain values, as far as a file may go; texts stay as they were written."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def plain(self, node: yaml.Node, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        if depth > _DEEPEST:
            raise ValueError("contains itself, by an alias")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, depth + 1) for item in node.value]
        if node.tag == _NULL:
            return None
        return str(node.value)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value in node.value:
            key = _key(key_node)
            if key in values:
                raise ValueError(f"has the key {key} twice")
            values[key] = self.plain(value, depth + 1)
        return values


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("a key must be a text")
    return str(node.value)


def _entry(node: yaml.Node, file: str, reader: _Reader) -> tuple[Entry | None, list[Problem]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        reader.plain(node)
        return None, [Problem(file, line, "", "an entry must be a mapping with the key `table`")]
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for key_node, value_node in node.value:
        at = key_node.start_mark.line + 1
        key = ""
        try:
            key = _key(key_node)
            if key in lines:
                raise ValueError("is given twice")
            lines[key] = at
            if key not in _FIELDS:
                raise ValueError(_unknown(key))
            fields[key] = _FIELDS[key].read(reader.plain(value_node))
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


def _topic(value: Any) -> str:
    name = TopicName.parse(_text(value))
    if name.shard is not None:
        raise ValueError(
            f"{value!r}: shards are not entries of their own; write {name.whole()}"
            " once, with shards: and shard_by:"
        )
    return str(name)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value.strip()


def _short(value: Any) -> str:
    """Repeat a value in a message, but not a page of it."""
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _names(value: Any) -> tuple[str, ...]:
    """Take a YAML list or, as in the seed, a text with commas."""
    if isinstance(value, list):
        items = [_text(item) for item in value]
    else:
        items = [item.strip() for item in _text(value).split(",")]
    names = tuple(item for item in items if item)
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"names {name[:60]} twice")
        seen.add(name.lower())
    return names


def _columns_named(value: Any) -> tuple[str, ...]:
    return tuple(_column(name) for name in _names(value))


def _column(value: Any) -> str:
    name = _text(value)
    if name and not _COLUMN.fullmatch(name):
        raise ValueError(f"{_short(name)} is not a column's name")
    return name


def _tables(value: Any) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        if not is_table(name):
            table = name.partition("#")[0].partition(":")[0]
            hint = f"; depend on the table, {table}" if is_table(table) else ""
            raise ValueError(f"{_short(name)} is not a table's name, db.table{hint}")
    return names


def _processor(value: Any) -> Processor:
    text = _text(value).lower()
    if not text:
        return Processor.STEP
    try:
        return Processor(text)
    except ValueError:
        known = ", ".join(Processor)
        raise ValueError(f"unknown processor {_short(value)}; there are: {known}") from None


def _duration(value: Any) -> int | None:
    text = _text(value)
    return parse_duration(text) if text else None


def _maxstep(value: Any) -> int:
    return _count(value, "rows", 1, 2**31 - 1, DEFAULT_MAXSTEP)


def _failed_rows(value: Any) -> int:
    return _count(value, "rows", 0, MOST_WAITING, DEFAULT_FAILED_ROWS)


def _retries(value: Any) -> int:
    return _count(value, "tries", 0, 2**31 - 1, DEFAULT_RETRIES)


def _shards(value: Any) -> int:
    return _count(value, "shards", 1, MOST_SHARDS, 0)


def _count(value: Any, of: str, least: int, most: int, default: int) -> int:
    text = _text(value).replace("_", "").replace(",", "")
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise ValueError(
            f"{_short(value)} is not a number of {of}; write a whole one from {least} to {most:,}"
        )
    return int(text)


def _share(value: Any) -> float:
    text = _text(value)
    if not text:
        return 1.0
    number = text.removesuffix("%")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?|\.[0-9]{1,6}", number):
        raise ValueError(f"{_short(value)} is not a share; write 0.05 or 5%")
    share = float(number) / (100 if text.endswith("%") else 1)
    if share > 1:
        raise ValueError(f"{_short(value)} is more than the whole block; write 0.05 or 5%")
    return share


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
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{_short(name)} is not a name for a check; use letters, digits, _")
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
    "keys": _Field(_columns_named, ()),
    "deleted": _Field(_text, ""),
    "checks": _Field(_checks, {}),
    "max_failed_rows": _Field(_failed_rows, DEFAULT_FAILED_ROWS),
    "max_failed_share": _Field(_share, 1.0),
    "max_retries_per_entity": _Field(_retries, DEFAULT_RETRIES),
    "partition_by": _Field(_columns_named, ()),
    "cluster_by": _Field(_columns_named, ()),
    "properties": _Field(_texts, {}),
    "columns": _Field(_columns, {}),
    "before": _Field(_text, ""),
    "after": _Field(_text, ""),
    "comment": _Field(_text, ""),
    "pos": _Field(_column, "pos"),
    "id": _Field(_column, "id"),
    "worker_tags": _Field(_names, ()),
    "shards": _Field(_shards, 0),
    "shard_by": _Field(_column, ""),
}
