"""YAML with its lines: a file read into entries, each checked by the fields that its kind gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticUseDefault

from tidegate.errors import Problem
from tidegate.model.duration import parse_duration

_LARGEST_FILE = 2_000_000
_MOST_VALUES = 1_000_000
"""Aliases can make a small file explode into a large one."""
_DEEPEST = 30
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NULL = "tag:yaml.org,2002:null"
_NO_MAPPING = "must be a mapping of names to values"
_SENTENCE = "sentence"


class EntryFields(BaseModel):
    """What an entry, or a mapping within one, may say; each kind has classes of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    called: ClassVar[str] = "an entry"
    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that are refused in a sentence of their own."""

    @classmethod
    def written(cls) -> dict[str, str]:
        """Give the keys that there are, each with how it is written."""
        found = {one.alias or name: one.examples for name, one in cls.model_fields.items()}
        return {key: f"{key}: {(shown or ['…'])[0]}" for key, shown in found.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Say in a sentence what is wrong; only here it is known which keys there are."""
        try:
            return read(values)
        except ValidationError as error:
            said = [cls._said(one) for one in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(cls.__name__, said) from None

    @classmethod
    def _said(cls, error: ErrorDetails) -> InitErrorDetails:
        kind: Any = error["type"]
        where, about = error["loc"], error.get("ctx", {})
        key = str(where[-1]) if where else ""
        match kind:
            case _ if _SENTENCE in about:  # by a mapping within this one
                sentence = about[_SENTENCE]
            case "extra_forbidden":
                unknown = f"unknown key; {cls.called} may have: {', '.join(cls.written())}"
                sentence = cls.refused.get(key, unknown)
            case "missing":
                sentence = f"is missing; write `{cls.written()[key]}`"
            case "union_tag_not_found":
                # A key says which of several classes it is; it has to stand there first.
                where = (*where, about["discriminator"].strip("'"))
                kind, sentence = "missing", "is missing"
            case "union_tag_invalid":
                tag = about["discriminator"].strip("'")
                where = (*where, tag)
                known = about["expected_tags"].replace("'", "")
                sentence = f"unknown {tag} {short(about['tag'])}; there are: {known}"
            case "model_type" | "model_attributes_type" | "dict_type":
                sentence = _NO_MAPPING
            case "list_type":
                sentence = "must be a list"
            case _:
                sentence = error["msg"].removeprefix("Value error, ")
        worded = PydanticCustomError(kind, "{sentence}", {_SENTENCE: sentence})
        return InitErrorDetails(type=worded, loc=where, input=error["input"])


F = TypeVar("F", bound=EntryFields)
Place = tuple[str, ...]
"""The keys, and the numbers of items, that lead from an entry to what stands in it."""


@dataclass(frozen=True)
class Form(Generic[F]):
    """How flows of one kind are written down: in which files, and with what in an entry."""

    files: tuple[str, ...]
    """Patterns from the project's folder on, without `.yaml` or `.yml`."""
    fields: type[F]
    listed: bool
    """A file is a list of entries; else it is one entry."""


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One entry as written: its fields, and where each of them stands."""

    file: str
    fields: F
    lines: Mapping[Place, int]
    """Of every key and item in it, and at () its own."""
    wrong: frozenset[str] = frozenset()
    """What did not read, and so is left at its default: it has its own problem."""

    @property
    def line(self) -> int:
        return self.lines[()]

    def problem(
        self, field: str, message: str, *, warning: bool = False, in_lake: bool = False
    ) -> Problem:
        """Make the problem of a field; one in a field is named as in `bolts.0.name`."""
        line = _line(self.lines, tuple(field.split(".")))
        return Problem(self.file, line, field, message, warning, in_lake)

    def lacks(self, name: str) -> bool:
        """Tell whether a field is missing or empty, and not just wrong."""
        return not getattr(self.fields, name) and name not in self.wrong


def _line(lines: Mapping[Place, int], place: Place) -> int:
    """Find the line of what stands there, or else of what it would stand in."""
    while place not in lines:
        place = place[:-1]
    return lines[place]


def read_entries(path: Path, shown: str, form: Form[F]) -> tuple[list[Entry[F]], list[Problem]]:
    """Read one file; what cannot be read is a problem, and the rest is still read."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            split = f"; split it into {form.files[-1]}.yaml" if form.listed else ""
            return [], [Problem(shown, 0, "", f"is larger than 2 MB{split}")]
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
    if form.listed and not isinstance(root, yaml.SequenceNode):
        example = next(iter(form.fields.written().values()))
        message = f"must be a list of entries, each beginning with `- {example}`"
        return [], [Problem(shown, root.start_mark.line + 1, "", message)]
    entries: list[Entry[F]] = []
    problems: list[Problem] = []
    reader = _Reader()
    for node in root.value if form.listed else [root]:
        try:
            entry, found = _entry(node, shown, form.fields, reader)
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
    """The file says more than a project can, by aliases that are followed again and again."""

    def __init__(self) -> None:
        super().__init__("is too large once its aliases are followed")


class _Unreadable(Exception):
    """A value that cannot be taken at all, and the line where it stands."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


class _Reader:
    """Turns nodes into plain values, as far as a file may go; texts stay as they were written."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def plain(self, node: yaml.Node, place: Place, lines: dict[Place, int]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        lines.setdefault(place, node.start_mark.line + 1)
        if len(place) > _DEEPEST:
            raise _Unreadable(node, "contains itself, by an alias")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place, lines)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.plain(item, (*place, str(number)), lines)
                for number, item in enumerate(node.value)
            ]
        if node.tag == _NULL:
            return None
        return str(node.value)

    def _mapping(
        self, node: yaml.MappingNode, place: Place, lines: dict[Place, int]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value in node.value:
            key = _key(key_node)
            if key in values:
                raise _Unreadable(key_node, f"has the key {key} twice")
            lines[(*place, key)] = key_node.start_mark.line + 1
            values[key] = self.plain(value, (*place, key), lines)
        return values


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Unreadable(node, "a key must be a text")
    return str(node.value)


def _entry(
    node: yaml.Node, file: str, fields: type[F], reader: _Reader
) -> tuple[Entry[F] | None, list[Problem]]:
    lines: dict[Place, int] = {(): node.start_mark.line + 1}
    known = fields.written()
    if not isinstance(node, yaml.MappingNode):
        with suppress(_Unreadable):
            reader.plain(node, (), {})
        message = f"an entry must be a mapping with the key `{next(iter(known))}`"
        return None, [Problem(file, lines[()], "", message)]
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    unread: set[str] = set()
    for key_node, value in node.value:
        key = ""
        try:
            key = _key(key_node)
            if (key,) in lines:
                raise _Unreadable(key_node, "is given twice")
            lines[(key,)] = key_node.start_mark.line + 1
            unread.add(key)
            values[key] = reader.plain(value, (key,), lines) if key in known else None
            unread.remove(key)
        except _Unreadable as error:
            problems.append(Problem(file, error.line, key, str(error)))
    found, errors = _checked(fields, values)
    for refused in errors:
        place = _place(refused, lines)
        if unread.isdisjoint(place[:1]):
            line = _line(lines, place)
            problems.append(Problem(file, line, ".".join(place), refused["msg"]))
    if found is None:
        return None, problems
    return Entry(file, found, lines, frozenset(unread | _wrong(errors))), problems


def _checked(fields: type[F], values: Mapping[str, Any]) -> tuple[F | None, list[ErrorDetails]]:
    """Check the values; what is wrong is told, and then left at its default."""
    try:
        return fields.model_validate(values), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    rest = {key: value for key, value in values.items() if key not in _wrong(errors)}
    try:
        return fields.model_validate(rest), errors
    except ValidationError:
        return None, errors  # what is wrong has no default


def _wrong(errors: Iterable[ErrorDetails]) -> set[str]:
    return {str(part) for error in errors for part in error["loc"][:1]}


def _place(error: ErrorDetails, lines: Mapping[Place, int]) -> Place:
    """Say where in the entry an error stands; pydantic puts in the class it chose, for one."""
    place: Place = ()
    for number, part in enumerate(error["loc"], 1):
        within = (*place, str(part))
        missing = error["type"] == "missing" and number == len(error["loc"])
        place = within if missing or within in lines else place
    return place


def short(value: Any) -> str:
    """Repeat a value in a message, but not a page of it."""
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def as_text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value.strip()


def as_given(value: Any) -> str:
    """Take a text; an empty one leaves the field at its default."""
    text = as_text(value)
    if not text:
        raise PydanticUseDefault
    return text


def as_names(value: Any) -> tuple[str, ...]:
    """Take a YAML list or, as in the seed, a text with commas."""
    if isinstance(value, list):
        items = [as_text(item) for item in value]
    else:
        items = [item.strip() for item in as_text(value).split(",")]
    names = tuple(item for item in items if item)
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"names {name[:60]} twice")
        seen.add(name.lower())
    return names


def as_mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(_NO_MAPPING)
    return value


def as_texts(value: Any) -> dict[str, str]:
    return {name: as_text(item) for name, item in as_mapping(value).items()}


def _milliseconds(value: Any) -> int:
    return parse_duration(as_given(value))


def _share(value: Any) -> float:
    text = as_given(value)
    number = text.removesuffix("%")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?|\.[0-9]{1,6}", number):
        raise ValueError(f"{short(value)} is not a share; write 0.05 or 5%")
    share = float(number) / (100 if text.endswith("%") else 1)
    if share > 1:
        raise ValueError(f"{short(value)} is more than the whole block; write 0.05 or 5%")
    return share


def counted(of: str, least: int, most: int) -> BeforeValidator:
    """Make the reader of a whole number; `_` and `,` may stand in it."""

    def read(value: Any) -> int:
        text = as_given(as_text(value).replace("_", "").replace(",", ""))
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise ValueError(
                f"{short(value)} is not a number of {of};"
                f" write a whole one from {least} to {most:,}"
            )
        return int(text)

    number = Annotated[int, Field(ge=least, le=most)]
    return BeforeValidator(read, json_schema_input_type=number | str | None)


# What an editor may take for each, by the schema: YAML knows numbers and truth where we know texts.
Scalar = str | int | float | bool | None
Text = Annotated[str, BeforeValidator(as_text, json_schema_input_type=Scalar)]
Texts = Annotated[
    dict[str, str], BeforeValidator(as_texts, json_schema_input_type=dict[str, Scalar] | None)
]
Names = Annotated[
    tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=list[Scalar] | Scalar)
]
Duration = Annotated[
    int, BeforeValidator(_milliseconds, json_schema_input_type=str | Literal[0] | None)
]
"""In milliseconds."""
Share = Annotated[
    float,
    BeforeValidator(
        _share, json_schema_input_type=Annotated[float, Field(ge=0, le=1)] | str | None
    ),
]
