"""Flows: anything that runs. What each says of itself, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

from tidegate.model.position import Block


class Kind(StrEnum):
    """What sort of flow it is. Two traits tell kinds apart where work is given and ended."""

    TABLE = "table"  # a topic of the lineage: rows of the lake turned into a table of it
    PIPE = "pipe"  # data into the lake, or out of it
    TOPOLOGY = "topology"  # child processes that hand tuples on
    JOB = "job"  # one piece of work, split into thousands
    EXTERNAL = "external"  # nobody's business but a foreign worker's

    @property
    def takes_slot(self) -> bool:
        """Tell whether an instance that runs one is busy with it."""
        return self is not Kind.TOPOLOGY

    @property
    def ends_in_store(self) -> bool:
        """Tell whether its end is what the store says; else it is what a foreign worker says."""
        return self is not Kind.EXTERNAL


class Operation(StrEnum):
    """What an execution does with its flow."""

    BUILD = "build"  # take what is due
    PUBLISH = "publish"  # put what was built beside in the place of what there is
    MAINTAIN = "maintain"  # tidy what is there

    @property
    def moves(self) -> bool:
        """Tell whether it declares a block and moves the position; else the flow stays put."""
        return self is not Operation.MAINTAIN

    @property
    def finishes_anew(self) -> bool:
        """Tell whether it may finish an open block in another way, up to the same end."""
        return self is Operation.PUBLISH


@dataclass(frozen=True, slots=True)
class Flow:
    """What the control plane knows of a flow."""

    id: str
    kind: Kind
    lane: str
    """What it writes to: one execution at a time in each lane."""
    tags: tuple[str, ...] = ()
    """What a worker must carry to be given it."""


class Definition(Protocol):
    """What somebody wrote down of a flow, as it was applied."""

    @property
    def flow(self) -> Flow: ...

    @property
    def processor(self) -> str:
        """Name what turns its blocks into rows, as people know it: `step`, `pipe` and so on."""

    @property
    def rebuilds(self) -> str:
        """The flow that this one is to take the place of; empty for those of a project."""

    def source(self) -> Mapping[str, Any]:
        """Describe where its data comes from, for its log: references to secrets, never these."""

    def sink(self) -> Mapping[str, Any]:
        """Describe where its data goes, for its log."""

    def may_finish(self, block: Block[Any], declared: Self, /) -> bool:
        """Tell whether a block that failed under another version means the same to this one."""

    def as_dict(self) -> Mapping[str, Any]:
        """Give plain values that JSON can hold."""


@dataclass(frozen=True)
class Changes:
    """How a project differs from what is applied in the store."""

    added: tuple[Definition, ...]
    changed: Mapping[str, tuple[str, ...]]
    """By flow: the fields that differ."""
    new: tuple[Definition, ...]
    """The changed definitions as they will be."""
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    @property
    def brought(self) -> tuple[Definition, ...]:
        """Give all that would be in force and is not."""
        return self.added + self.new

    def lines(self) -> list[str]:
        """Say it to people, one flow a line."""
        return [
            *(f"+ {definition.flow.id} ({definition.processor})" for definition in self.added),
            *(f"~ {flow}: {', '.join(names)}" for flow, names in self.changed.items()),
            *(f"- {flow}" for flow in self.removed),
        ]


def difference(applied: Mapping[str, Definition], project: Mapping[str, Definition]) -> Changes:
    """Compare the project's definitions with the applied ones."""
    changed: dict[str, tuple[str, ...]] = {}
    for flow in sorted(applied.keys() & project.keys()):
        names = _differing(applied[flow], project[flow])
        if names:
            changed[flow] = names
    return Changes(
        added=tuple(project[flow] for flow in sorted(project.keys() - applied.keys())),
        changed=changed,
        new=tuple(project[flow] for flow in changed),
        removed=tuple(sorted(applied.keys() - project.keys())),
    )


def _differing(before: Definition, after: Definition) -> tuple[str, ...]:
    if before.flow.kind is not after.flow.kind:
        return ("kind",)
    old, new = before.as_dict(), after.as_dict()
    return tuple(name for name in new if old.get(name) != new[name])
