"""What the leader hears: heartbeats, and how far executions have come.

Outcomes of our own instances are in the store before anybody hears of them, so what they say only
wakes the leader, but for a refusal, which costs them no look into the store. A foreign worker's
word is all that there is of its execution, and anybody's of a stream that runs elsewhere: it is
written down.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tidegate.errors import Malformed
from tidegate.model.execution import Execution, advance, stream_of
from tidegate.model.messages import (
    Accepted,
    ExecutionProgress,
    Failed,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Rejected,
    Started,
    StreamProgress,
    parse,
)
from tidegate.ports.outside import Runtime
from tidegate.ports.store import Delivery, Store

log = logging.getLogger(__name__)
_Refused = list[tuple[Delivery, str]]


@dataclass
class Handled:
    """What came out of a batch of messages."""

    wakes_leader: bool = False
    """Something happened that may make another flow due, or an instance free."""
    news: bool = False
    """Somebody told more than that it lives."""
    beats: dict[str, list[InstanceState]] = field(default_factory=dict)
    refusals: set[str] = field(default_factory=set)
    """Instances that rejected an execution."""
    writing: Sequence[Future[None]] = ()
    """The beats on their way into the store."""


class MessageHandler:
    """Reads messages for one leader."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._known: dict[str, InstanceState] = {}
        """What each instance said last, to tell news from repetition."""

    def handle(self, deliveries: Sequence[Delivery], term: int) -> Handled:
        """Write down what the messages say; what cannot be read is kept apart and skipped."""
        handled = Handled()
        refused: _Refused = []
        progress: list[tuple[Delivery, ExecutionProgress]] = []
        streams: list[tuple[Delivery, StreamProgress]] = []
        for delivery in deliveries:
            message = _read(delivery, refused)
            match message:
                case None:
                    continue
                case Heartbeat():
                    self._beat(message, handled)
                case Accepted() | Rejected() | Started() | Finished() | Failed():
                    progress.append((delivery, message))
                case _ if isinstance(message, StreamProgress):
                    streams.append((delivery, message))
        if handled.beats:
            # Handed over: only who goes on to look at the instances has to wait for it.
            last = {id: states[-1] for id, states in handled.beats.items()}
            handled.writing = (self._store.instances.beat(last),)
        if progress or streams:
            handled.news = True
            named = {message.execution_id for _, message in (*progress, *streams)}
            executions = dict(self._store.executions.some(named))
            self._follow(progress, executions, handled, refused, term)
            self._record_streams(streams, executions, refused)
        if refused:
            delivery, why = refused[-1]
            skipped = (len(refused), delivery.channel, delivery.where, why)
            log.warning("skipped %d messages, the last on %s at %s: %s", *skipped)
            self._store.rejected.keep(refused, self._runtime.now())
        return handled

    def _beat(self, message: Heartbeat, handled: Handled) -> None:
        handled.beats.setdefault(message.id, []).append(message.state)
        if self._known.get(message.id) is not message.state:
            self._known[message.id] = message.state
            handled.wakes_leader = handled.wakes_leader or message.state is InstanceState.IDLE

    def _follow(
        self,
        progress: Sequence[tuple[Delivery, ExecutionProgress]],
        executions: dict[str, Execution],
        handled: Handled,
        refused: _Refused,
        term: int,
    ) -> None:
        before = dict(executions)
        for delivery, message in progress:
            execution = executions.get(message.execution_id)
            if execution is None:
                refused.append((delivery, f"no execution {message.execution_id}"))
                continue
            if execution.etl_worker != message.assignee:
                why = f"{message.assignee} is not the worker of execution {execution.id}"
                refused.append((delivery, why))
                continue
            if not isinstance(message, Accepted | Started):
                handled.wakes_leader = True
            if isinstance(message, Rejected):
                handled.refusals.add(message.assignee)
            if not execution.flow_kind.ends_in_store or isinstance(message, Rejected):
                executions[execution.id] = advance(execution, message)
        moved = [
            (before[id], execution)
            for id, execution in executions.items()
            if execution != before[id]
        ]
        self._store.executions.follow(moved, term, self._runtime.now())

    def _record_streams(
        self,
        streams: Sequence[tuple[Delivery, StreamProgress]],
        executions: dict[str, Execution],
        refused: _Refused,
    ) -> None:
        known = []
        for delivery, message in streams:
            execution = executions.get(message.execution_id)
            if execution is None:
                refused.append((delivery, f"no execution {message.execution_id}"))
            elif (
                not execution.flow_kind.ends_in_store or execution.etl_worker != message.instance_id
            ):
                known.append(stream_of(message))
        self._store.phases.record(known, self._runtime.now())


def _read(delivery: Delivery, refused: _Refused) -> Message | None:
    try:
        return parse(delivery.channel, delivery.body)
    except Malformed as error:
        refused.append((delivery, str(error)))
        return None
