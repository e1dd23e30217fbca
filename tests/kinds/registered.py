"""Puts the kind that counts into the registry, as a package of its own would stand there.

Files of `counts/` say what is counted: `count: NAME`, `into: db.table`, `upto: N`. The first try of
each project fails, so that it is seen to be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegate import wiring
from tidegate.errors import FlowFailed
from tidegate.model.flow import Kind
from tidegate.project.folder import Found, KindReader, Shared
from tidegate.project.yaml import Entry, EntryFields, Form, Text
from tidegate.spark.session import SparkHost
from tidegate.wiring import KindParts, Parts

from .counting import KIND, CountDefinition, CountPlanner, CountRunner

FAILED = "failed-once"
"""The file that says that the first try is over."""


class CountFields(EntryFields):
    """An entry of `counts/`."""

    count: Text
    into: Text
    upto: Text = "10"


def read(entries: Sequence[Entry[CountFields]], shared: Shared) -> Found:  # noqa: ARG001
    """Turn entries into definitions: one thing, two numbers a block, three blocks an execution."""
    wanted = [(entry.fields, entry) for entry in entries]
    return Found([(CountDefinition(f.count, f.into, {"x": int(f.upto)}), e) for f, e in wanted], [])


def parts() -> KindParts:
    """Give what the kind brings."""
    return replace(
        wiring.KINDS[Kind.TABLE],
        reader=KindReader("count", Form(("counts/*",), CountFields, listed=False), read),
        read=CountDefinition.from_dict,
        planner=lambda parts: CountPlanner(parts.store, parts.runtime),
        runner=_runner,
        check=lambda _project: [],
        analyse=lambda _parts, _spark: [],
        misfits=lambda _parts, _changes: [],
    )


def _runner(parts: Parts, spark: SparkHost) -> CountRunner:
    marker = parts.project.folder / FAILED
    return CountRunner(
        parts.landing(spark), stop=spark.interrupt, before_block=lambda _: _fail_once(marker)
    )


def _fail_once(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        raise FlowFailed("it does not work the first time")


def register() -> None:
    """Let every command of this process know the kind."""
    registry: dict[Any, KindParts] = dict(wiring.KINDS)
    registry[KIND] = parts()
    known: Mapping[Any, KindParts] = registry
    wiring.KINDS = known
