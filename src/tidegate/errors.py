"""The exceptions that Tidegate raises on purpose, as one tree.

    TidegateError                 something failed; exit code 1
    ├── WrongUse                  the user can mend it in the call or the project; exit code 2
    │   ├── ProjectError          problems found in a project, each with file, line and field
    │   └── UnknownName           a topic, view or flow that the project does not have
    ├── StoreError                the store cannot be used
    │   └── StoreAway             it may be back in a moment: nothing is wrong with the call
    ├── BusError                  the bus cannot be used
    ├── Malformed                 a message that is not what its topic carries: count it, skip it
    ├── MutexError                a topic is being worked on by somebody else
    ├── Deposed                   another leads by now: write nothing more as the leader
    ├── ClaimLost                 the execution no longer owns its topic: walk away, write nothing
    ├── FlowFailed                an execution could not do its work; the position stays where it is
    │   ├── TooManyFail           more rows fail than may: soon it would fail over the same ones
    │   └── TopicStopped          going on could harm the table: the topic waits for a person
    ├── LakeError                 a table cannot be read or written
    │   └── LakeAway              it is an Outage, too
    └── Outage                    what the work stands on fails, and not the work itself
        ├── LakeAway              storage is away, full, or refuses: it may be back in a moment
        └── SetupError            the machine lacks a part: Java, a jar, a package, a cluster

What fails over a definition or over rows counts, and stops its topic in the end. An Outage never
does: whoever runs the execution waits, longer each time, and goes on by itself when it is over.

Messages are one sentence: what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TidegateError(Exception):
    """Something failed."""

    exit_code = 1


class WrongUse(TidegateError):
    """The call or the project has to be changed first."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong with a project, and where."""

    file: str
    line: int
    field: str
    message: str
    warning: bool = False
    in_lake: bool = False
    """It depends on what is in the lake now, so it holds up the topic, not the project."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        field = f" {self.field}:" if self.field else ""
        return f"{where}:{field} {self.message}"


class ProjectError(WrongUse):
    """The project has problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownName(WrongUse):
    """The project has no such topic, view or flow."""


class StoreError(TidegateError):
    """The store cannot be used."""


class StoreAway(StoreError):
    """The store cannot be reached now."""


class BusError(TidegateError):
    """The bus cannot be used."""


class Malformed(TidegateError):
    """A message is not what its topic carries."""


class MutexError(TidegateError):
    """The topic is being worked on by somebody else."""

    def __init__(self, topic: str, holder: str, since: str) -> None:
        self.topic, self.holder, self.since = topic, holder, since
        super().__init__(f"{topic} is held by {holder} since {since}")


class Deposed(TidegateError):
    """Another leads by now."""


class ClaimLost(TidegateError):
    """The execution no longer owns its topic."""


class FlowFailed(TidegateError):
    """An execution could not do its work."""


class TooManyFail(FlowFailed):
    """More rows fail than may."""


class TopicStopped(FlowFailed):
    """Going on could harm the table."""


class LakeError(TidegateError):
    """A table cannot be read or written."""


class Outage(TidegateError):
    """What the work stands on fails, and not the work itself."""


class LakeAway(LakeError, Outage):
    """The lake cannot be used now."""


class SetupError(Outage):
    """The machine lacks a part."""
