"""The embedded bus: messages are rows of the store, and whoever waits for them is rung for."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from functools import partial

from tidegate.bus.doorbell import Doorbell, Ear, Room
from tidegate.errors import StoreError
from tidegate.model.messages import Message, Topic, key_of, render, topic_of
from tidegate.ports import Delivery, Listening, Messages, Parcel

RETENTION = 180_000
"""Milliseconds that a message is kept when nobody takes it."""
TRIM_EVERY = RETENTION // 6
LOOK_SECONDS = 1.0
"""How long a lost ring can go unnoticed."""
TAKEN_AT_ONCE = 250
"""Rows, each of many messages perhaps."""
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
        parcels = self.enclose(messages)
        with self._changed:
            self._outbox += parcels
            if self._sending:
                # They go along as soon as those before them are written: all at once, one ring.
                return
            self._sending = True
        self._send()

    def enclose(self, messages: Sequence[Message]) -> Sequence[Parcel]:
        return [Parcel(topic_of(one), key_of(one), render(one)) for one in messages]

    def announce(self, messages: Sequence[Message]) -> None:
        self._ring({_room_of(topic_of(one)) for one in messages})

    def manager_inbox(self) -> EmbeddedInbox:
        return self._inbox(Room.MANAGER, [Topic.HEARTBEAT, Topic.PROGRESS], None)

    def worker_inbox(self, instances: Sequence[str]) -> EmbeddedInbox:
        return self._inbox(Room.WORKERS, [Topic.CONTROL], instances)

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

    def _inbox(
        self, room: Room, topics: Sequence[Topic], keys: Sequence[str] | None
    ) -> EmbeddedInbox:
        inbox = EmbeddedInbox(self._messages, self._bell.ear(room), topics, keys, self._inboxes)
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
            rooms = {_room_of(parcel.topic) for parcel in parcels}
            self._messages.put(parcels, now).add_done_callback(partial(self._sent, rooms))
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

    def _sent(self, rooms: Collection[Room], put: Future[None]) -> None:
        _complain(put)
        self._ring(rooms)
        self._send()

    def _ring(self, rooms: Collection[Room]) -> None:
        # A database that notifies has told those who listen, on every machine, with the commit.
        if self._listening is None:
            self._bell.look(rooms)


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
        self._given: Counter[int] = Counter()
        """The rows that were received and are in the table: how many messages are not done yet."""
        self._done: list[int] = []
        """Rows that are done and not deleted yet: to delete is to write, and others wait then."""
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
        for row in map(_row_of, deliveries):
            self._given[row] -= 1
            if self._given[row] == 0:
                self._done.append(row)

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
            fresh = self._messages.take(self._topics, self._keys, TAKEN_AT_ONCE, self._given)
        except StoreError as error:
            if not self._away:
                _log.warning("messages cannot be read for now: %s", error)
            self._away = True
            return []
        self._away = False
        self._given.update(map(_row_of, fresh))
        return fresh

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
                for id in ids:
                    del self._given[id]
            else:
                self._delete(ids)

    def _delete(self, ids: Sequence[int]) -> None:
        try:
            self._deleting.append((ids, self._messages.delete(ids)))
        except StoreError as error:
            # They come again to the next reader, which knows messages that come twice.
            _log.warning("%d messages stay in the store: %s", len(ids), error)


def _room_of(topic: Topic) -> Room:
    return Room.WORKERS if topic is Topic.CONTROL else Room.MANAGER


def _row_of(delivery: Delivery) -> int:
    return int(delivery.where.partition(".")[0])


def _complain(writing: Future[None]) -> None:
    error = writing.exception()
    if error is not None:
        _log.warning("the store did not take what the bus wrote: %s", error)
