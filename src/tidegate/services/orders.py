"""What an instance is told to run: believed, refused, or taken over from a foreign manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import ClaimLost, MutexError, StoreAway, StoreError
from tidegate.model.assignment import new_execution
from tidegate.model.execution import Execution, ExecutionState, Limits
from tidegate.model.instance import TABLE
from tidegate.model.pace import Pace
from tidegate.ports import Delivery, Runtime, Store
from tidegate.services.executor import Executor
from tidegate.services.lifecycle import Lifecycle
from tidegate.services.reporter import BusReporter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """An execution that an instance is to run."""

    execution_id: str
    instance: str
    configuration: Any = None
    delivery: Delivery | None = None
    """What told of it; None when it was found in the store."""

    @property
    def topic(self) -> str:
        """The topic that it names, if it is of a table."""
        given = self.configuration or {}
        topic = given.get("id") if given.get("kind") == TABLE else None
        return topic if isinstance(topic, str) else ""


class Orders:
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
        tidy: Callable[[str], object],
        foreign: Callable[[str], Limits | None] | None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._reporter = reporter
        self._runtime = runtime
        self._pace = pace
        self._life = life
        self._tidy = tidy
        """Looks after a topic's table once a block is in it."""
        self._foreign = foreign
        """Plans a topic for an assign that is in nobody's store: a foreign manager's."""

    def run(self, order: Order) -> bool:
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
        log.info("%s: %s, %s rows", ended.topic, ended.state.value, ended.rows or 0)
        if ended.state is ExecutionState.FINISHED:
            self._tidy(ended.topic)
        return True

    def _ordered(self, order: Order) -> Execution | None:
        """Give the execution that was ordered; None when there is nothing to do about it."""
        if self._foreign is None and order.topic:
            # As it was told: the claim holds it against the row, so it is not read for that.
            told = (order.execution_id, order.topic, self._runtime.now())
            return new_execution(*told, limits=None, worker=order.instance)
        execution = self._store.executions.get(order.execution_id)
        if execution is None and self._foreign is not None:
            return self._adopt(order)
        if not self._is_known(order) or execution is None:
            return None
        mine = execution.etl_worker == order.instance
        return execution if mine and execution.state is ExecutionState.ASSIGNED else None

    def _is_known(self, order: Order) -> bool:
        """Tell whether the store has such an order; one that it has not is counted as nonsense."""
        if order.delivery is None or self._foreign is not None:
            return True
        execution = self._store.executions.get(order.execution_id)
        if execution is not None and execution.etl_worker == order.instance:
            return True
        why = f"no execution {order.execution_id} of instance {order.instance}"
        self.refuse([(order.delivery, why)])
        return False

    def _adopt(self, order: Order) -> Execution | None:
        """Write down the execution of a manager that keeps its own books."""
        assert self._foreign is not None
        topic = order.topic
        if not topic:
            self._reporter.rejected(order.execution_id, order.instance)
            return None
        made = new_execution(
            order.execution_id,
            topic,
            self._runtime.now(),
            limits=self._foreign(topic),
            worker=order.instance,
        )
        self._store.executions.assign(made)
        return made

    def refuse(self, refused: Sequence[tuple[Delivery, str]]) -> None:
        """Keep and count what makes no sense; while the store is away, nothing can be obeyed."""
        if refused:
            delivery, why = refused[-1]
            skipped = (len(refused), delivery.topic, delivery.where, why)
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
