"""The store as a whole."""

from __future__ import annotations

from typing import Protocol

from tidegate.ports.bus import Messages, Rejected
from tidegate.ports.fleet import Instances, Leadership, Phases, Wishes
from tidegate.ports.topics import (
    Datasets,
    Executions,
    Failures,
    Journal,
    Lineages,
    Offsets,
    Rebuilds,
)


class Store(Protocol):
    """The truth, by noun."""

    @property
    def lineages(self) -> Lineages: ...

    @property
    def offsets(self) -> Offsets: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def datasets(self) -> Datasets: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def instances(self) -> Instances: ...

    @property
    def leadership(self) -> Leadership: ...

    @property
    def phases(self) -> Phases: ...

    @property
    def wishes(self) -> Wishes: ...
    @property
    def messages(self) -> Messages: ...

    @property
    def rejected(self) -> Rejected: ...

    @property
    def rebuilds(self) -> Rebuilds: ...

    def close(self) -> None: ...
