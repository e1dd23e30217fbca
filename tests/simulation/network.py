"""A bus that loses, doubles, reorders and delays: messages are bytes, as on the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tidegate.model.messages import Channel, Message, channel_of, key_of, render
from tidegate.ports.store import Delivery, OutgoingMessage

from .process import Letters, Process

LATEST_WAKE = 150.0
"""Milliseconds."""


class Weather:
    """How likely a message is lost or doubled, and how long it takes; a play changes it."""

    def __init__(self) -> None:
        self.lost = 0.0
        self.doubled = 0.0
        self.longest = 5.0
        """Milliseconds."""


class Network:
    """What all buses of a play share: one log for managers, and an ear for each worker."""

    def __init__(self, after: Callable[[float, Callable[[], None]], None], chance: Random) -> None:
        self.weather = Weather()
        self._after = after
        self.chance = chance
        self._log: list[Delivery] = []
        self._done = 0
        """Up to here some manager has handled the log: the next one starts there."""
        self._managers: list[ManagerInbox] = []
        self._workers: list[WorkerInbox] = []

    def send(self, message: Message) -> None:
        """Let a message come to whoever listens then, or not."""
        topic, key, body = channel_of(message), key_of(message), render(message)
        weather, chance = self.weather, self.chance
        copies = 1 + (chance.random() < weather.doubled)
        for _ in range(copies):
            if chance.random() < weather.lost:
                continue
            delay = chance.random() ** 3 * weather.longest
            self._after(delay, lambda: self._arrive(topic, key, body))

    def _arrive(self, topic: Channel, key: str, body: bytes) -> None:
        if topic is Channel.CONTROL:
            for worker in self._workers:
                worker.hear(key, Delivery(topic, body, "0"))
            return
        self._log.append(Delivery(topic, body, str(len(self._log))))
        for manager in self._managers:
            manager.ring()

    def managers_from(self, process: Process) -> ManagerInbox:
        inbox = ManagerInbox(self, process, self._done)
        self._managers.append(inbox)
        process.on_death.append(inbox.close)
        return inbox

    def workers_for(self, process: Process, instances: Sequence[str]) -> WorkerInbox:
        inbox = WorkerInbox(self, process, frozenset(instances))
        self._workers.append(inbox)
        process.on_death.append(inbox.close)
        return inbox

    def log_from(self, place: int) -> Sequence[Delivery]:
        return self._log[place:]

    def handled(self, upto: int) -> None:
        self._done = max(self._done, upto)

    def forget(self, inbox: ManagerInbox | WorkerInbox) -> None:
        self._managers = [one for one in self._managers if one is not inbox]
        self._workers = [one for one in self._workers if one is not inbox]

    def empty(self) -> None:
        """Lose all that no manager has handled yet."""
        self._done = len(self._log)
        for manager in self._managers:
            manager.place = self._done


class ManagerInbox:
    """Implements `ports.Inbox` over the log."""

    def __init__(self, network: Network, process: Process, place: int) -> None:
        self._network = network
        self._process = process
        self.place = place
        self._bell: Letters = process.mailbox()

    def ring(self) -> None:
        if not self._bell.waits:
            self._bell.put(None)

    def receive(self, timeout: float) -> Sequence[Delivery]:
        self._process.require_life()
        found = self._network.log_from(self.place)
        if not found:
            self._bell.receive(timeout)
            # A real one takes some time to be woken, and then finds all that came meanwhile.
            self._process.wait(self._network.chance.random() * LATEST_WAKE)
            found = self._network.log_from(self.place)
        self.place += len(found)
        return found

    def done(self, deliveries: Sequence[Delivery]) -> None:
        self._process.pass_by()
        if deliveries:
            self._network.handled(int(deliveries[-1].where) + 1)

    def close(self) -> None:
        self._network.forget(self)


class WorkerInbox:
    """Implements `ports.Inbox` for the instances of one process."""

    def __init__(self, network: Network, process: Process, instances: frozenset[str]) -> None:
        self._network = network
        self._process = process
        self._instances = instances
        self._letters: Letters = process.mailbox()

    def hear(self, key: str, delivery: Delivery) -> None:
        if key in self._instances:
            self._letters.put(delivery)

    def receive(self, timeout: float) -> Sequence[Delivery]:
        delivery = self._letters.receive(timeout)
        return [] if delivery is None else [delivery]

    def done(self, deliveries: Sequence[Delivery]) -> None: ...

    def close(self) -> None:
        self._network.forget(self)


class PlayedBus:
    """Implements `ports.Bus` for one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def create_channels(self) -> None: ...

    def publish(self, messages: Sequence[Message]) -> None:
        self._process.require_life()
        for message in messages:
            self._network.send(message)

    def enclose(self, _messages: Sequence[Message]) -> Sequence[OutgoingMessage]:
        return ()

    def announce(self, messages: Sequence[Message]) -> None:
        self.publish(messages)

    def manager_inbox(self) -> ManagerInbox:
        return self._network.managers_from(self._process)

    def worker_inbox(self, instances: Sequence[str]) -> WorkerInbox:
        return self._network.workers_for(self._process, instances)

    def wake(self) -> None: ...

    def trim(self, before: int) -> None: ...

    def close(self) -> None: ...
