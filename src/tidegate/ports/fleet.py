"""The store by noun: who leads, who works, and what people want."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from tidegate.model.execution import (
    Execution,
)
from tidegate.model.instance import Instance, InstanceStatus
from tidegate.model.leadership import Lease
from tidegate.model.messages import InstanceState
from tidegate.model.streams import Stream


class Leadership(Protocol):
    """Who leads, by one row and the store's clock."""

    def read(self) -> Lease: ...

    def take(self, holder: str, length: int) -> int | None:
        """Become the leader while nobody is; give the new term, or None."""

    def renew(self, term: int, length: int) -> Lease | None:
        """Move the end of the lease on where that is due; None when it is not ours any more."""

    def resign(self, term: int) -> None:
        """Let others lead at once."""


class Instances(Protocol):
    """The slots of worker processes, ours and foreign ones."""

    def all(self) -> Sequence[Instance]: ...

    def stamps(self) -> Mapping[str, object]:
        """Give, by instance, something that is another one after each write of its row."""

    def some(self, ids: Collection[str]) -> Mapping[str, Instance]:
        """Those of these that there are."""

    def of(self, process: str) -> Sequence[Instance]:
        """Those that one worker process hosts."""

    def register(self, instances: Sequence[Instance]) -> None:
        """Make ours known, or known again: alive."""

    def beat(self, states: Mapping[str, InstanceState]) -> Future[None]:
        """Note heartbeats as received now; who was dead lives again, who is unknown is foreign.

        Handed over, and written before anything that the caller writes later.
        """

    def set_status(self, process: str, status: InstanceStatus) -> None: ...

    def disable(self, instances: Collection[str], disabled: bool) -> None: ...

    def bury(
        self, instances: Collection[str], ended: frozenset[str], why: str, term: int
    ) -> Sequence[Execution]:
        """Leader steps 1 to 3: unload the dead, and give the executions that they lose.

        `ended` are the hostids that can no longer write: their mutexes are freed. Raises Deposed.
        """

    def trim(self, before: int, term: int) -> None:
        """Forget instances that were unloaded before a time; raises Deposed."""


class Phases(Protocol):
    """What is known of the streams of executions."""

    def tell(self, streams: Sequence[Stream], at: int) -> None: ...

    def of(self, execution_id: str) -> Sequence[Stream]: ...


@dataclass(frozen=True)
class Wish:
    """A row of `flow_wishes`."""

    paused_at: int | None = None
    paused_by: str = ""
    paused_why: str = ""
    run_asked_at: int | None = None


class Wishes(Protocol):
    """What people want of flows. Who, when and what stands in the flow's log, too."""

    def all(self) -> Mapping[str, Wish]: ...

    def pause(self, flow: str, by: str, why: str, at: int) -> None: ...

    def unpause(self, flow: str, by: str, at: int) -> None: ...

    def ask_to_run(self, flows: Sequence[str], by: str, at: int) -> None: ...

    def note(self, flow: str, by: str, what: str, at: int) -> None:
        """Keep any other action by hand in the flow's log."""
