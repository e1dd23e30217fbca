"""The embedded bus: messages are rows of the store, and whoever waits for them is rung for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from tidegate.bus.doorbell import Doorbell, Ear
from tidegate.errors import StoreError
from tidegate.model.messages import Message, Topic, key_of, render, topic_of
from tidegate.ports import Delivery, Listening, Messages, Parcel

RETENTION = 180_000
"""Milliseconds that a message is kept when nobody takes it."""
TRIM_EVERY = RETENTION // 6
LOOK_SECONDS = 1.0
"""How long a lost ring can go unnoticed."""
TAKEN_AT_ONCE = 1000
DELETE_SECONDS = 0.25
MOST_DONE = 1000
"""So long, or so many, are handled messages kept before they are deleted all at once."""
CLOSING_SECONDS = 5.0

_log = logging.getLogger(__name__)


class EmbeddedBus:
    """Implements `ports.Bus` over the store's table."""

    def __init__(self, messages: Messages, store_url: str, now: Callable[[], int]) -> None:
        self._messages, self._now = messages, now
        self._bell = Doorbell(store_url)
        self._trimmed_at = now()
        self._inboxes: list[EmbeddedInbox] = []
        self._listening: Listening | None = None
        self._changed = threading.Condition()
        self._outbox: list[Parcel] = []
        self._sending = False

    def create_topics(self) -> None:
        """Do nothing: the store's own schema holds them."""

    def publish(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        parcels = [Parcel(topic_of(one), key_of(one), render(one)) for one in messages]
        with self._changed:
            self._outbox += parcels
            if self._sending:
                # They go along as soon as those before them are written: all at once, one ring.
                return
            self._sending = True
        self._send()

    def manager_inbox(self) -> EmbeddedInbox:
        return self._inbox([Topic.HEARTBEAT, Topic.PROGRESS], None)

    def worker_inbox(self, instances: Sequence[str]) -> EmbeddedInbox:
        return self._inbox([Topic.CONTROL], instances)

    def wake(self) -> None:
        self._bell.wake()

    def trim(self, before: int) -> None:
        self._messages.trim(before).add_done_callback(_complain)

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._sending, CLOSING_SECONDS)
        if self._listening is not None:
            self._listening.close()
        for inbox in list(self._inboxes):
            inbox.close()

    def _inbox(self, topics: Sequence[Topic], keys: Sequence[str] | None) -> EmbeddedInbox:
        inbox = EmbeddedInbox(self._messages, self._bell.ear(), topics, keys, self._inboxes)
        if self._listening is None:
            self._listening = self._messages.listen(self._ring_here)
        return inbox

    def _ring_here(self) -> None:
        for inbox in list(self._inboxes):
            inbox.ring()

    def _send(self) -> None:
        with self._changed:
            parcels, self._outbox = self._outbox, []
            if not parcels:
                self._rest()
                return
        now = self._now()
        try:
            self._messages.put(parcels, now).add_done_callback(self._sent)
            if now - self._trimmed_at >= TRIM_EVERY:
                # Here too, because no manager may be there to do it.
                self._trimmed_at = now
                self.trim(now - RETENTION)
        except StoreError as error:
            with self._changed:
                self._rest()
            _log.warning("%d messages are not sent: %s", len(parcels), error)

    def _rest(self) -> None:
        self._sending = False
        self._changed.notify_all()

    def _sent(self, put: Future[None]) -> None:
        _complain(put)
        # A database that notifies has told those who listen, on every machine, with the commit.
        if self._listening is None:
            self._bell.look()
        self._send()


class EmbeddedInbox:
    """Implements `ports.Inbox`."""

    def __init__(
        self,
        messages: Messages,
        ear: Ear,
        topics: Sequence[Topic],
        keys: Sequence[str] | None,
        open_inboxes: list[EmbeddedInbox],
    ) -> None:
        self._messages, self._ear, self._open = messages, ear, open_inboxes
        self._topics, self._keys = topics, keys
        self._given: set[int] = set()
        """What was received and is still in the table."""
        self._done: list[int] = []
        """What is handled and not deleted yet: to delete is to write, and others wait meanwhile."""
        self._done_since = 0.0
        self._deleting: list[tuple[Sequence[int], Future[None]]] = []
        self._away = False
        open_inboxes.append(self)

    def receive(self, timeout: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + timeout
        while True:
            # In this order: a ring that comes after the look is heard in the wait.
            woken = self._ear.drain()
            found = self._look()
            left = deadline - time.monotonic()
            if found or woken or left <= 0:
                return found
            self._ear.wait(min(left, LOOK_SECONDS))

    def done(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries and not self._done:
            self._done_since = time.monotonic()
        self._done += [int(delivery.where) for delivery in deliveries]

    def ring(self) -> None:
        self._ear.ring()

    def close(self) -> None:
        """Wait until what is done is out of the next reader's way; safe to call twice."""
        self._delete_done()
        wait([deletion for _, deletion in self._deleting], CLOSING_SECONDS)
        if self in self._open:
            self._open.remove(self)
            self._ear.close()

    def _look(self) -> Sequence[Delivery]:
        self._settle()
        try:
            rows = self._messages.take(self._topics, self._keys, TAKEN_AT_ONCE + len(self._given))
        except StoreError as error:
            if not self._away:
                _log.warning("messages cannot be read for now: %s", error)
            self._away = True
            return []
        self._away = False
        fresh = {int(row.where): row for row in rows}
        for known in self._given & fresh.keys():
            del fresh[known]
        self._given |= fresh.keys()
        return list(fresh.values())

    def _delete_done(self) -> None:
        done, self._done = self._done, []
        if done:
            self._delete(done)

    def _settle(self) -> None:
        """Forget what is deleted by now, and delete again what the store did not take."""
        if time.monotonic() - self._done_since >= DELETE_SECONDS or len(self._done) > MOST_DONE:
            self._delete_done()
        deleting, self._deleting = self._deleting, []
        for ids, deletion in deleting:
            if not deletion.done():
                self._deleting.append((ids, deletion))
            elif deletion.exception() is None:
                self._given.difference_update(ids)
            else:
                self._delete(ids)

    def _delete(self, ids: Sequence[int]) -> None:
        try:
            self._deleting.append((ids, self._messages.delete(ids)))
        except StoreError as error:
            # They come again to the next reader, which knows messages that come twice.
            _log.warning("%d messages stay in the store: %s", len(ids), error)


def _complain(writing: Future[None]) -> None:
    error = writing.exception()
    if error is not None:
        _log.warning("the store did not take what the bus wrote: %s", error)
