"""A kind that is no table: a job counts things, and lands every number as a row.

    marker    how far each thing is counted, and the pos at which the last rows landed
    block     the next few numbers of each thing
    run       some blocks, with a checkpoint behind each but the last

It needs a Landing and nothing else, so it runs over any lake. Which rows there must be in the end
follows from the definition: every thing, with the numbers from 1 to its goal, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.errors import FlowFailed
from tidegate.model.execution import Counts, Execution, Outcome, Work
from tidegate.model.flow import Definition, Flow, Kind, Operation
from tidegate.model.instances import Due
from tidegate.model.messages import Phase
from tidegate.model.position import Block, Offset, OffsetState, rfc3339
from tidegate.ports.kinds import Checkpoint, Instruction, Link, Nothing, Verdict
from tidegate.ports.outside import Batch, Landing, Runtime
from tidegate.ports.store import Applied, Claimed, FlowControl, Store

KIND = Kind.JOB
RETRY_AFTER = 1_000
"""Milliseconds from a failure to the next try."""
Marker = Mapping[str, Any]


@dataclass(frozen=True)
class CountDefinition:
    """What is counted, into which table, and how much of it at a time."""

    name: str
    table: str
    goals: Mapping[str, int]
    """By thing, how far it is counted."""
    at_once: int = 2
    """So many numbers of each thing are a block."""
    blocks: int = 3
    """So many blocks at most are one execution."""
    rebuilds: str = ""
    processor: ClassVar[str] = "count"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CountDefinition:
        return cls(**values)

    @property
    def flow(self) -> Flow:
        return Flow(self.name, KIND, lane=self.table)

    def source(self) -> Mapping[str, Any]:
        return {"type": "numbers", "things": sorted(self.goals)}

    def sink(self) -> Mapping[str, Any]:
        return {"type": "table", "table": self.table}

    def may_finish(self, block: Block[Any], declared: CountDefinition) -> bool:
        return counted(block.next).keys() <= self.goals.keys() and self.table == declared.table

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)

    def left(self, last: Any) -> int:
        """Say how many numbers are not counted yet behind a marker."""
        known = counted(last)
        return sum(max(0, goal - known.get(thing, 0)) for thing, goal in self.goals.items())


def as_count(definition: Definition) -> CountDefinition:
    assert isinstance(definition, CountDefinition)
    return definition


def counted(marker: Any) -> Mapping[str, int]:
    """Read how far each thing is counted; a flow that never ran has no marker of its own yet."""
    return marker.get("counted", {}) if isinstance(marker, Mapping) else {}


def pos_of(marker: Marker) -> int:
    """Read the pos that the rows of the block before a marker get."""
    pos: int = marker["pos"]
    return pos


def numbers_in(block: Block[Any]) -> list[tuple[str, int]]:
    """Give the thing and the number of every row that a block lands."""
    last = counted(block.last)
    return [
        (thing, number)
        for thing, upto in sorted(counted(block.next).items())
        for number in range(last.get(thing, 0) + 1, upto + 1)
    ]


@dataclass(frozen=True)
class CountVerdict:
    """Implements `ports.kinds.Verdict`."""

    topic: str
    why: str
    rows_ahead: int
    complete_to: int
    due: bool = False
    broken: bool = False
    away: bool = False
    held_back_by: str | None = None


class CountPlanner:
    """Implements `ports.kinds.Planner`: due while something is not counted."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._as_of = runtime.now()
        self._applied: Mapping[str, Applied] = {}
        self._offsets: Mapping[str, Offset[Any]] = {}
        self._verdicts: Mapping[str, CountVerdict] = {}

    @property
    def as_of(self) -> int:
        return self._as_of

    def due(self, now: int) -> Sequence[Due]:
        self._as_of = now
        return [
            Due(self._applied[name].definition.flow, self._offset(name).run or 0)
            for name, verdict in self.verdicts(eager=False).items()
            if verdict.due
        ]

    def verdicts(self, *, eager: bool) -> Mapping[str, Verdict]:
        self._applied = self._store.definitions.current(KIND)
        self._offsets = self._store.offsets.all()
        controls = self._store.controls.all()
        self._verdicts = {
            name: self._verdict(
                as_count(one.definition), controls.get(name, FlowControl()), eager=eager
            )
            for name, one in self._applied.items()
        }
        return self._verdicts

    def processor(self, flow: str) -> str:
        return self._applied[flow].definition.processor

    def chain(self, flow: str) -> Sequence[Link]:
        found = self._verdicts.get(flow)
        return [Link(flow, found.complete_to, found.why)] if found else []

    def rows_to_read(self, flows: Collection[str]) -> int:
        return sum(one.rows_ahead for name, one in self._verdicts.items() if name in flows)

    def instruct(self, chosen: Collection[str]) -> Sequence[Instruction]:
        return [
            Instruction(self._applied[name].definition.flow, goes_on=self._offset(name).goes_on)
            for name in chosen
        ]

    def record_looks(self) -> None:
        """What it counts is nowhere to be seen."""

    def _verdict(
        self, definition: CountDefinition, control: FlowControl, *, eager: bool
    ) -> CountVerdict:
        offset = self._offset(definition.name)
        left = definition.left(offset.last)
        due, why = self._judge(offset, left, control, eager=eager)
        return CountVerdict(definition.name, why, left, offset.complete_to, due)

    def _judge(
        self, offset: Offset[Any], left: int, control: FlowControl, *, eager: bool
    ) -> tuple[bool, str]:
        if control.paused_at is not None:
            return False, f"paused by {control.paused_by}"
        if offset.state is OffsetState.STOPPED:
            return False, f"stopped: {offset.reason}"
        if not eager and _rests(offset, self._as_of):
            again = rfc3339((offset.run or 0) + _wait(offset))
            what = "failed" if offset.away_since is None else "away"
            return False, f"{what} ({offset.reason}); tried again at {again}"
        if offset.block is not None:
            return True, "has to finish its block"
        return left > 0, f"due: {left} to count" if left else "everything is counted"

    def _offset(self, name: str) -> Offset[Any]:
        return self._offsets.get(name) or Offset(name, {})


def _rests(offset: Offset[Any], now: int) -> bool:
    """Tell whether a flow that failed waits; not by a clock that is far ahead of ours."""
    run, wait = offset.run or 0, _wait(offset)
    failed = offset.failures > 0 or offset.away_since is not None
    return failed and now - wait < run <= now + wait


def _wait(offset: Offset[Any]) -> int:
    return offset.wait or RETRY_AFTER


def _do_nothing(_execution_id: str) -> None:
    """Let a run go on."""


@dataclass
class CountRunner:
    """Implements `ports.kinds.Runner`."""

    landing: Landing
    stop: Callable[[str], None] = _do_nothing
    """Lets what an execution is landing fail."""
    before_block: Callable[[str], None] = _do_nothing
    """Where a run may fail between two blocks."""
    _running: set[str] = field(default_factory=set)

    def declare(self, claimed: Claimed) -> Block[Any] | Nothing:
        assert claimed.applied is not None
        definition, offset = as_count(claimed.applied.definition), claimed.offset
        version = claimed.applied.version
        return self._behind(definition, offset.last, offset.seq, version) or Nothing()

    def run(self, work: Work, checkpoint: Checkpoint) -> Outcome:
        self._running.add(work.execution.id)
        try:
            return self._run(work, checkpoint)
        finally:
            self._running.discard(work.execution.id)

    def follow_up(self, ended: Execution) -> Operation | None:  # noqa: ARG002  (nothing to tidy)
        return None

    def interrupt(self, execution_id: str) -> None:
        self._running.discard(execution_id)
        self.stop(execution_id)

    def _run(self, work: Work, checkpoint: Checkpoint) -> Outcome:
        definition, block, landed = as_count(work.definition), work.block, 0
        for more in reversed(range(definition.blocks)):
            outcome = self._land(definition, block, work.execution, landed)
            landed += outcome.rows
            version = block.definition_version
            next = self._behind(definition, block.next, block.seq, version) if more else None
            if next is None:
                break
            checkpoint(outcome, next)
            block = next
        if definition.left(block.next):
            return outcome
        # The flow stands still then, until its execution ends: that is allowed as well.
        checkpoint(outcome, None)
        return Outcome(0, "everything is counted", streams=outcome.streams)

    def _land(
        self, definition: CountDefinition, block: Block[Any], execution: Execution, before: int
    ) -> Outcome:
        self.before_block(execution.id)
        if execution.id not in self._running:
            raise FlowFailed("interrupted")
        pos, numbers = pos_of(block.next), numbers_in(block)
        batch = Batch(
            definition.table, definition.name, block.seq, pos, block.complete_to, execution.id
        )
        rows = pa.Table.from_pylist([{"thing": one, "number": n} for one, n in numbers])
        landed = self.landing.land(batch, rows)
        done = before + landed.rows
        return Outcome(
            landed.rows,
            "skipped" if landed.skipped else "",
            landed.landed.version,
            streams=[Counts(Phase.DATA_LOAD, definition.table, done, done)],
            entities=[entity_of(block)],
            landed=[landed.landed],
        )

    def _behind(
        self, definition: CountDefinition, last: Any, seq: int, version: int
    ) -> Block[Any] | None:
        """Find the block behind a marker; None when everything is counted."""
        known = counted(last)
        upto = {
            thing: max(known.get(thing, 0), min(known.get(thing, 0) + definition.at_once, goal))
            for thing, goal in definition.goals.items()
        }
        rows = sum(upto.values()) - sum(known.get(thing, 0) for thing in upto)
        if not rows:
            return None
        pos = self.landing.pos_for(definition.table)
        next = {"counted": {**known, **upto}, "pos": pos}
        full = definition.left(next) > 0
        return Block(last, next, rows, seq + 1, full, pos, version, processor="count")


def entity_of(block: Block[Any]) -> Mapping[str, Any]:
    """Tell the log of a block, once."""
    return {"_id": f"counted:{block.seq}", "event_type": "counted", **counted(block.next)}
