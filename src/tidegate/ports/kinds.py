"""What a kind of flow brings, and what it is given.

    Planner   1. what of it is due, and for the rest why not
    Runner    3b. finds the block; 4 and 5. turns it into an outcome
    Executes  runs an execution in this process, for a kind's own commands

The executor owns 3 and 6: it declares what the Runner found, and commits what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.model.execution import Execution, ExecutionState, Outcome, Stream, Work
from tidegate.model.flow import Flow, Operation
from tidegate.model.instances import Due
from tidegate.model.position import Block
from tidegate.ports.store import Claimed


@dataclass(frozen=True)
class Nothing:
    """There is no block to take."""

    complete_to: int = 0
    """What the flow is complete to all the same."""


class Checkpoint(Protocol):
    """6, for an execution of many blocks: commits one, declares the next, and goes on."""

    def __call__(self, outcome: Outcome, next: Block[Any] | None) -> None:
        """Commit; without a next block the flow stands still until the end. Raises ClaimLost."""


class Runner(Protocol):
    """Steps 3b, 4 and 5, for one kind of flow."""

    def declare(self, claimed: Claimed) -> Block[Any] | Nothing:
        """3b. Find the block of a flow that has none open, by what the execution was told.

        Asked of one that has, too, where the operation may finish it in another way.
        """

    def run(self, work: Work, checkpoint: Checkpoint) -> Outcome:
        """4 and 5. Do the block exactly once, whatever was done of it before.

        Raises Outage where it is not the flow's fault: that is waited out, whatever it takes.
        """

    def follow_up(self, ended: Execution) -> Operation | None:
        """Say what its lane needs now that an execution has finished; mostly nothing."""

    def interrupt(self, execution_id: str) -> None:
        """Let a run fail where it stands; nothing happens when it is not running."""


@dataclass(frozen=True)
class Instruction:
    """What an execution of a due flow is told beside its flow."""

    flow: Flow
    configuration: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False
    """The one before it failed, or died: it is its retry."""


class Verdict(Protocol):
    """What a plan says of one flow."""

    @property
    def topic(self) -> str: ...

    @property
    def due(self) -> bool: ...

    @property
    def broken(self) -> bool:
        """It cannot run although it should: something that it had is gone."""

    @property
    def away(self) -> bool:
        """It is broken for as long as what it reads cannot be reached: no fault of its own."""

    @property
    def rows_ahead(self) -> int: ...

    @property
    def complete_to(self) -> int: ...

    @property
    def held_back_by(self) -> str | None:
        """What keeps it from being fresher; None when nothing but time does."""

    @property
    def why(self) -> str:
        """Say in words what makes it due, or what holds it back."""


@dataclass(frozen=True)
class Link:
    """One place in a chain of causes: a flow, or a table that nobody here builds."""

    name: str
    complete_to: int
    why: str


class Planner(Protocol):
    """Step 1, for one kind of flow. It remembers what cannot have changed since it last looked."""

    @property
    def as_of(self) -> int:
        """The time that it plans for."""

    def due(self, now: int) -> Sequence[Due]:
        """Say what could run as of now, by the store's clock; raises LakeError."""

    def verdicts(self, *, eager: bool) -> Mapping[str, Verdict]:
        """Judge every flow as of the planner's own time; eager is what people are."""

    def processor(self, flow: str) -> str:
        """Name what turns the flow's blocks into rows, as people know it: step, pipe and so on."""

    def chain(self, flow: str) -> Sequence[Link]:
        """Follow what holds a flow back, as of the last verdicts; empty for a flow of others."""

    def rows_to_read(self, flows: Collection[str]) -> int:
        """Give about how many rows a run of these flows would read, as things stand."""

    def instruct(self, chosen: Collection[str]) -> Sequence[Instruction]:
        """Give what executions of these flows are told, as of the last look."""

    def record_looks(self) -> None:
        """Let the store know how far what others write was seen to be."""


class Reporter(Protocol):
    """Step 7: told of what an execution does, once the store knows it."""

    def began(self, execution: Execution) -> None: ...

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None:
        """Report the end, with the streams of a commit: together, as the store has them."""


class Executes(Protocol):
    """Runs executions in this process."""

    def assign(
        self,
        flow: Flow,
        *,
        operation: Operation = Operation.BUILD,
        configuration: Mapping[str, Any] | None = None,
    ) -> Execution:
        """2. Keep an execution for this process; after one that failed or died, its retry."""

    def execute(self, execution: Execution) -> Execution:
        """3 to 7. Run one execution, and give it as it ended; raises MutexError, ClaimLost."""


class Watcher(Protocol):
    """Told of what goes on in a run by hand, to show it to somebody."""

    def started(self, topic: str, rows_ahead: int) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def maintained(self, execution: Execution) -> None: ...

    def refused(self, topic: str, why: str) -> None: ...


@dataclass
class Report:
    """What a run by hand did, and why the rest was not due."""

    executions: list[Execution] = field(default_factory=list)
    not_due: dict[str, str] = field(default_factory=dict)
    cut_short: str = ""
    """Why it ended before all that was due had run; mostly it did not."""

    @property
    def failed(self) -> bool:
        ends = (ExecutionState.FAILED, ExecutionState.LOST)
        return bool(self.cut_short) or any(execution.state in ends for execution in self.executions)
