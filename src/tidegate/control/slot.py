"""One slot's work: an assignment believed, refused, or taken over from a foreign manager; then run.

Step 7, the report, says on ems.progress what the store knows already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.control.executor import Executor
from tidegate.control.lifecycle import Lifecycle
from tidegate.errors import ClaimLost, MutexError, StoreAway, StoreError
from tidegate.model.execution import (
    Execution,
    ExecutionState,
    Stream,
    flow_in,
    messages_of,
    new_execution,
    operation_in,
)
from tidegate.model.flow import Flow, Kind
from tidegate.model.instances import Pace
from tidegate.model.messages import Accepted, Failed, Finished, Message, Rejected, Started
from tidegate.ports.kinds import Instruction
from tidegate.ports.outside import Bus, Runtime
from tidegate.ports.store import Delivery, Store


class NoReporter:
    """Reports nothing: whoever runs in the foreground looks on."""

    def began(self, execution: Execution) -> None: ...

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None: ...


class BusReporter:
    """Publishes what an instance does."""

    def __init__(self, bus: Bus, runtime: Runtime) -> None:
        self._bus = bus
        self._runtime = runtime

    def began(self, execution: Execution) -> None:
        where = (execution.id, execution.etl_worker, self._runtime.now())
        self._bus.publish([Accepted(*where), Started(*where)])

    def ended(self, execution: Execution, streams: Sequence[Stream]) -> None:
        at = execution.finished_at or self._runtime.now()
        where = (execution.id, execution.etl_worker, at)
        told = [message for stream in streams for message in messages_of(stream)]
        self._bus.publish([*told, _end(execution, where)])

    def rejected(self, execution_id: str, instance: str) -> None:
        self._bus.publish([Rejected(execution_id, instance, self._runtime.now())])


def _end(execution: Execution, where: tuple[str, str, int]) -> Message:
    match execution.state:
        case ExecutionState.FINISHED:
            return Finished(*where)
        case ExecutionState.REJECTED:
            return Rejected(*where)
        case _:
            return Failed(*where, execution.comment)


def _how_it_ended(execution: Execution) -> str:
    """Say why an execution did not finish; what was lost says so itself."""
    failed = execution.state is ExecutionState.FAILED
    return f"failed: {execution.comment}" if failed else execution.comment


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """An execution that an instance is to run."""

    execution_id: str
    instance: str
    configuration: Any = None
    delivery: Delivery | None = None
    """What told of it; None when it was found in the store."""

    @property
    def flow(self) -> Flow | None:
        """The flow of ours that it names in full."""
        return flow_in(self.configuration)


class Assignments:
    """Carries out what the instances of one worker are told."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        reporter: BusReporter,
        runtime: Runtime,
        pace: Pace,
        life: Lifecycle,
        *,
        foreign: Callable[[str], Instruction | None] | None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._reporter = reporter
        self._runtime = runtime
        self._pace = pace
        self._life = life
        self._foreign = foreign
        """Plans a flow for an assign that is in nobody's store: a foreign manager's."""

    def run(self, order: Assignment) -> bool:
        """Run what was ordered; tell whether its end was reported."""
        execution = self._ordered(order)
        if execution is None:
            return False
        log.info("%s: execution %s", execution.topic, execution.id)
        try:
            ended = self._executor.execute(execution)
        except (MutexError, ClaimLost) as refusal:
            log.info("%s", refusal)
            if self._is_known(order):
                self._reporter.rejected(order.execution_id, order.instance)
            return False
        if ended.state is ExecutionState.FINISHED:
            log.info("%s: finished, %s rows", ended.topic, ended.rows or 0)
            self._executor.follow_up(ended)
        else:
            log.warning("%s: %s", ended.topic, _how_it_ended(ended))
        return True

    def _ordered(self, order: Assignment) -> Execution | None:
        """Give the execution that was ordered; None when there is nothing to do about it."""
        flow = order.flow
        if self._foreign is None and flow is not None:
            # As it was told: the claim holds it against the row, so it is not read for that.
            return new_execution(
                order.execution_id,
                flow,
                self._runtime.now(),
                operation=operation_in(order.configuration),
                worker=order.instance,
            )
        execution = self._store.executions.get(order.execution_id)
        if execution is None and self._foreign is not None:
            return self._adopt(order)
        if not self._is_known(order) or execution is None:
            return None
        mine = execution.etl_worker == order.instance
        return execution if mine and execution.state is ExecutionState.ASSIGNED else None

    def _is_known(self, order: Assignment) -> bool:
        """Tell whether the store has such an order; one that it has not is counted as nonsense."""
        if order.delivery is None or self._foreign is not None:
            return True
        execution = self._store.executions.get(order.execution_id)
        if execution is not None and execution.etl_worker == order.instance:
            return True
        why = f"no execution {order.execution_id} of instance {order.instance}"
        self.refuse([(order.delivery, why)])
        return False

    def _adopt(self, order: Assignment) -> Execution | None:
        """Write down the execution of a manager that keeps its own books."""
        assert self._foreign is not None
        given = order.configuration if isinstance(order.configuration, Mapping) else {}
        kind, id = given.get("kind"), given.get("id")
        if kind not in self._executor.kinds or not isinstance(id, str):
            self._reporter.rejected(order.execution_id, order.instance)
            return None
        # One that is not defined fails where it is run, with its reason.
        instruction = self._foreign(id) or Instruction(Flow(id, Kind(kind), lane=id))
        made = new_execution(
            order.execution_id,
            instruction.flow,
            self._runtime.now(),
            configuration=instruction.configuration,
            worker=order.instance,
        )
        self._store.executions.assign(made)
        return made

    def refuse(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Keep and count what makes no sense; while the store is away, nothing can be obeyed."""
        if refused:
            delivery, why = refused[-1]
            skipped = (len(refused), delivery.channel, delivery.where, why)
            log.warning("skipped %d messages, the last on %s at %s: %s", *skipped)
        while refused and not self._life.stopping:
            try:
                self._store.rejected.keep(refused, self._runtime.now())
            except StoreAway:
                self._runtime.sleep(self._pace.loop / 1000)
            except StoreError as error:
                log.warning("%s", error)
                return
            else:
                return
