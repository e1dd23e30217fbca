"""YAML with its lines, on fields that no kind has: mappings in mappings, choices, lists of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from tidegate.project.yaml import (
    Duration,
    Entry,
    EntryFields,
    Form,
    Names,
    Share,
    Text,
    Texts,
    counted,
    read_entries,
)
from tidegate.tables.reading import TABLES


class Jdbc(EntryFields):
    called: ClassVar[str] = "a jdbc source"

    type: Literal["jdbc"]
    url: Text = Field(examples=["jdbc:postgresql://…"])
    options: Texts = {}  # noqa: RUF012  (pydantic copies it)


class Files(EntryFields):
    called: ClassVar[str] = "a files source"

    type: Literal["files"]
    path: Text
    settle: Duration = 2_000


class Input(EntryFields):
    source: Text = Field(examples=["lines"])


class Node(EntryFields):
    called: ClassVar[str] = "a node"
    refused: ClassVar[dict[str, str]] = {"class": "is not for this node"}

    name: Text
    tags: Names = ()
    parallel: Annotated[int, counted("copies", 1, 64)] = 1
    inputs: list[Input] = []  # noqa: RUF012


class Made(EntryFields):
    """An entry as a pipe's or a topology's could be."""

    name: Text = Field(alias="_id", examples=["crm"])
    source: Annotated[Jdbc | Files, Field(discriminator="type")] | None = None
    every: Duration | None = None
    share: Share = 1.0
    nodes: list[Node] = []  # noqa: RUF012


LISTED = Form(("made",), Made, listed=True)
WHOLE = Form(("made/*",), Made, listed=False)
SOUND = """\
- _id: crm
  source:
    type: files
    path: data
    settle: 1min
  nodes:
    - {name: one, tags: 'a, b'}
    - name: two
      parallel: 2
      inputs:
        - source: one
"""


def _read(
    folder: Path, text: str, form: Form[Made] = LISTED
) -> tuple[list[Entry[Made]], list[tuple[int, str, str]]]:
    path = folder / "made.yaml"
    path.write_text(text)
    entries, problems = read_entries(path, "made.yaml", form)
    return entries, [(problem.line, problem.field, problem.message) for problem in problems]


def test_what_stands_in_another_is_read(tmp_path: Path) -> None:
    (entry,), problems = _read(tmp_path, SOUND)
    assert problems == []
    assert entry.fields == Made(
        _id="crm",
        source=Files(type="files", path="data", settle="1min"),  # type: ignore[arg-type]
        nodes=[
            Node(name="one", tags="a, b"),  # type: ignore[arg-type]
            Node(name="two", parallel="2", inputs=[Input(source="one")]),  # type: ignore[arg-type]
        ],
    )
    assert isinstance(entry.fields.source, Files)
    assert entry.fields.source.settle == 60_000
    assert [node.parallel for node in entry.fields.nodes] == [1, 2]


def test_each_key_and_item_has_its_line(tmp_path: Path) -> None:
    (entry,), _ = _read(tmp_path, SOUND)
    fields = ("", "source", "source.settle", "nodes.0", "nodes.0.tags", "nodes.1.inputs.0.source")
    assert [entry.problem(field, "x").line for field in fields] == [1, 2, 5, 7, 7, 11]
    assert entry.problem("nodes.1.silence", "x").line == 8
    assert entry.problem("gone.too", "x").line == 1


@pytest.mark.parametrize(
    ("was", "is_now", "told"),
    [
        ("path: data", "paht: data", (4, "source.paht", "unknown key; a files source may have: ")),
        ("path: data", "# path", (2, "source.path", "is missing; write `path: …`")),
        ("path: data", "path: [x]", (4, "source.path", "must be a text")),
        ("settle: 1min", "settle: soon", (5, "source.settle", "'soon' is not a duration")),
        ("type: files", "type: ftp", (3, "source.type", "unknown type 'ftp'; there are: jdbc, f")),
        ("type: files", "# type", (2, "source.type", "is missing")),
        ("type: files", "type: jdbc", (2, "source.url", "is missing; write `url: jdbc:postgres")),
        ("settle: 1min", "path: x", (5, "source", "has the key path twice")),
        ("settle: 1min", "? [a]\n    : x", (5, "source", "a key must be a text")),
        ("parallel: 2", "parallel: 65", (9, "nodes.1.parallel", "'65' is not a number of copies")),
        ("parallel: 2", "class: x", (9, "nodes.1.class", "is not for this node")),
        ("name: two", "parallel: 3", (9, "nodes", "has the key parallel twice")),
        ("- name: two\n      ", "- ", (8, "nodes.1.name", "is missing; write `name: …`")),
        ("- source: one", "- just a text", (11, "nodes.1.inputs.0", "must be a mapping of names")),
        ("- source: one", "- sauce: one", (11, "nodes.1.inputs.0.sauce", "unknown key; an entry")),
        ("tags: 'a, b'", "tags: {a: b}", (7, "nodes.0.tags", "must be a text")),
    ],
)
def test_a_problem_has_the_line_of_what_is_wrong(
    tmp_path: Path, was: str, is_now: str, told: tuple[int, str, str]
) -> None:
    assert was in SOUND
    (entry,), problems = _read(tmp_path, SOUND.replace(was, is_now))
    line, field, message = told
    assert [problem[:2] for problem in problems if message in problem[2]] == [(line, field)]
    assert entry.wrong == {field.partition(".")[0]}
    assert entry.fields.name == "crm"


@pytest.mark.parametrize("value", ["x", "[a]", "{}"])
@pytest.mark.parametrize("field", ["source", "nodes"])
def test_what_has_another_shape_is_refused(tmp_path: Path, field: str, value: str) -> None:
    (entry,), problems = _read(tmp_path, f"- _id: x\n  {field}: {value}\n")
    (problem,) = problems
    assert problem[0] == 2
    assert problem[1].split(".")[0] == field
    assert problem[2] in {"must be a mapping of names to values", "must be a list", "is missing"}
    assert entry.fields == Made(_id="x")


def test_every_problem_of_an_entry_is_told_in_one_go(tmp_path: Path) -> None:
    text = "- every: soon\n  source: {type: files, x: 1}\n  nodes: [{nam: a}, 5]\n  share: 120%\n"
    entries, problems = _read(tmp_path, text)
    assert entries == []
    assert [problem[:2] for problem in sorted(problems)] == [
        (1, "_id"),
        (1, "every"),
        (2, "source.path"),
        (2, "source.x"),
        (3, "nodes.0.nam"),
        (3, "nodes.0.name"),
        (3, "nodes.1"),
        (4, "share"),
    ]


def test_a_required_field_that_is_empty_is_missing(tmp_path: Path) -> None:
    class Timed(EntryFields):
        name: Text
        every: Duration = Field(examples=["5min"])

    path = tmp_path / "made.yaml"
    path.write_text("- name: x\n  every:\n")
    entries, problems = read_entries(path, "made.yaml", Form(("made",), Timed, listed=True))
    assert entries == []
    assert [str(one) for one in problems] == ["made.yaml:2: every: is missing; write `every: 5min`"]


def test_a_file_may_be_one_entry(tmp_path: Path) -> None:
    (entry,), problems = _read(tmp_path, "\n_id: crm\nevery: 5s\n", WHOLE)
    assert (entry.line, entry.fields.every, problems) == (2, 5_000, [])
    entries, problems = _read(tmp_path, "# what\n- _id: crm\n", WHOLE)
    assert (entries, problems) == ([], [(2, "", "an entry must be a mapping with the key `_id`")])
    assert _read(tmp_path, "# nothing yet\n", WHOLE) == ([], [])


def test_what_is_no_list_is_refused_with_how_one_begins(tmp_path: Path) -> None:
    message = "must be a list of entries, each beginning with `- _id: crm`"
    assert _read(tmp_path, "_id: crm\n") == ([], [(1, "", message)])


def test_keys_with_a_dot_are_not_taken_for_others(tmp_path: Path) -> None:
    text = "- source.path: x\n  _id: x\n  source:\n    type: files\n    path: [x]\n"
    _, problems = _read(tmp_path, text)
    assert [problem[:2] for problem in sorted(problems)] == [(1, "source.path"), (5, "source.path")]


def _property(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = schema["properties"][name]
    return found


def test_a_table_has_a_json_schema() -> None:
    schema = TABLES.form.fields.model_json_schema()
    assert schema["required"] == ["table"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(TABLES.form.fields.written())
    assert schema["$defs"]["Processor"]["enum"] == ["step", "reload", "source"]
    assert _property(schema, "maxstep")["anyOf"][0] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 2**31 - 1,
    }
    assert {"type": "string"} in _property(schema, "delay")["anyOf"]
    assert _property(schema, "depends_on")["anyOf"][0]["type"] == "array"
    assert all("default" in one for name, one in schema["properties"].items() if name != "table")


def test_what_stands_in_another_is_in_the_schema_too() -> None:
    schema = Made.model_json_schema()
    assert {"Jdbc", "Files", "Node", "Input"} <= schema["$defs"].keys()
    assert schema["$defs"]["Node"]["additionalProperties"] is False
    assert "_id" in schema["properties"]
