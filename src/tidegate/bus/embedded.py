"""The embedded bus: messages are rows of the store, and whoever waits for them is woken.

    <XDG_RUNTIME_DIR or temp>/tidegate-<uid>/<hash of the store's URL>/<audience><one an inbox>

The folders are the register: who waits has a socket there, and one that nobody listens to any more
is removed by the next wake. A lost wake costs a second, never a message.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import selectors
import socket
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from enum import StrEnum
from functools import partial
from pathlib import Path

from tidegate.errors import BusError, StoreError
from tidegate.model.messages import Channel, Message, channel_of, key_of, render
from tidegate.ports.store import Delivery, Listening, Messages, OutgoingMessage

LONGEST_PATH = 100
"""Unix sockets take paths of 107 bytes, of 103 on some systems."""
NAME_BYTES = 6
"""Chance in a socket's name, two letters each."""
_LOOK = b""
"""Something was put into the table."""
_WAKE = b"w"
"""Return to your caller, whether or not there is something."""


class Audience(StrEnum):
    """Where somebody waits: what is for the others wakes nobody here."""

    MANAGER = "m"
    WORKERS = "w"


class WakeSockets:
    """The sockets of all who wait at one store, on this machine."""

    def __init__(self, store_url: str) -> None:
        digest = hashlib.sha256(store_url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._folder = _private_folder(digest)

    def wake_socket(self, audience: Audience) -> WakeSocket:
        """Take a place among those who are rung for."""
        return WakeSocket(self._folder / f"{audience}{secrets.token_hex(NAME_BYTES)}")

    def look(self, audiences: Collection[Audience]) -> None:
        """Tell those who wait in some audiences to look into the table."""
        self._send(_LOOK, audiences)

    def wake(self) -> None:
        """Make all return from their waits."""
        self._send(_WAKE, frozenset(Audience))

    def _send(self, datagram: bytes, audiences: Collection[Audience]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            for path in self._listed(audiences):
                try:
                    bell.sendto(datagram, path)
                except ConnectionRefusedError:
                    # Its process is dead. Names are never used again, so nobody else's is hit.
                    Path(path).unlink(missing_ok=True)
                except OSError:
                    # The one place where ignoring is right: a full socket wakes already, one that
                    # is gone has nobody to wake, and whoever misses a wake looks within a second.
                    continue

    def _listed(self, audiences: Collection[Audience]) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return [entry.path for entry in entries if entry.name[0] in audiences]
        except FileNotFoundError:
            # Somebody cleaned the temporary folder: nobody can be rung for, all look by the clock.
            return []


class WakeSocket:
    """One place to wait at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise BusError(
                f"no socket can be made in {path.parent} ({error.strerror}); check the rights on"
                " it, or name another folder in TMPDIR"
            ) from None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def drain(self) -> bool:
        """Take all that came; tell whether one of them was a wake."""
        woken = False
        while True:
            try:
                woken = self._socket.recv(16) == _WAKE or woken
            except BlockingIOError:
                return woken

    def wait(self, seconds: float) -> None:
        """Wait for a wake."""
        self._selector.select(max(0.0, seconds))

    def wake(self) -> None:
        """Tell whoever waits here to look into the table."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            try:
                bell.sendto(_LOOK, str(self._path))
            except OSError:
                # As above: it wakes already, or it has just been closed.
                return

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._selector.close()
        self._socket.close()


def _private_folder(name: str) -> Path:
    """Make a folder that only this user can enter, at a path short enough for sockets."""
    own = Path(f"tidegate-{os.getuid()}") / name
    places = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
    for place in (Path(place) for place in places if place and Path(place).is_dir()):
        folder = place / own
        longest = folder / f"{Audience.WORKERS}{'0' * 2 * NAME_BYTES}"
        if len(os.fsencode(longest)) <= LONGEST_PATH:
            for made in (folder.parent, folder):
                _make_private(made)
            return folder
    raise BusError("no folder has a path short enough for sockets; name one in TMPDIR")


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise BusError(
            f"the folder {folder} cannot be made ({error.strerror}); name another place in TMPDIR"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        # Somebody else made it first, to hear or to hold up what is rung there.
        raise BusError(
            f"{folder} is not a folder of this user alone; remove it, or name another place in"
            " TMPDIR"
        )


RETENTION = 180_000
"""Milliseconds that a message is kept when nobody takes it."""
TRIM_EVERY = RETENTION // 6
LOOK_SECONDS = 1.0
"""How long a lost wake can go unnoticed."""
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
        self._sockets = WakeSockets(store_url)
        self._trimmed_at = now()
        self._inboxes: list[EmbeddedInbox] = []
        self._listening: Listening | None = None
        self._changed = threading.Condition()
        self._outbox: list[OutgoingMessage] = []
        self._sending = False

    def create_channels(self) -> None:
        """Do nothing: the store's own schema holds them."""

    def publish(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        outgoing = self.enclose(messages)
        with self._changed:
            self._outbox += outgoing
            if self._sending:
                # They go along as soon as those before them are written: all at once, one wake.
                return
            self._sending = True
        self._send()

    def enclose(self, messages: Sequence[Message]) -> Sequence[OutgoingMessage]:
        return [OutgoingMessage(channel_of(one), key_of(one), render(one)) for one in messages]

    def announce(self, messages: Sequence[Message]) -> None:
        self._wake({_audience_of(channel_of(one)) for one in messages})

    def manager_inbox(self) -> EmbeddedInbox:
        return self._inbox(Audience.MANAGER, [Channel.HEARTBEAT, Channel.PROGRESS], None)

    def worker_inbox(self, instances: Sequence[str]) -> EmbeddedInbox:
        return self._inbox(Audience.WORKERS, [Channel.CONTROL], instances)

    def wake(self) -> None:
        self._sockets.wake()

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
        self, audience: Audience, channels: Sequence[Channel], keys: Sequence[str] | None
    ) -> EmbeddedInbox:
        inbox = EmbeddedInbox(
            self._messages, self._sockets.wake_socket(audience), channels, keys, self._inboxes
        )
        if self._listening is None:
            self._listening = self._messages.listen(self._wake_here)
        return inbox

    def _wake_here(self) -> None:
        for inbox in list(self._inboxes):
            inbox.wake()

    def _send(self) -> None:
        with self._changed:
            outgoing, self._outbox = self._outbox, []
            if not outgoing:
                self._rest()
                return
        now = self._now()
        try:
            audiences = {_audience_of(message.channel) for message in outgoing}
            self._messages.put(outgoing, now).add_done_callback(partial(self._sent, audiences))
            if now - self._trimmed_at >= TRIM_EVERY:
                # Here too, because no manager may be there to do it.
                self._trimmed_at = now
                self.trim(now - RETENTION)
        except StoreError as error:
            with self._changed:
                self._rest()
            _log.warning("%d messages are not sent: %s", len(outgoing), error)

    def _rest(self) -> None:
        self._sending = False
        self._changed.notify_all()

    def _sent(self, audiences: Collection[Audience], put: Future[None]) -> None:
        _complain(put)
        self._wake(audiences)
        self._send()

    def _wake(self, audiences: Collection[Audience]) -> None:
        # A database that notifies has told those who listen, on every machine, with the commit.
        if self._listening is None:
            self._sockets.look(audiences)


class EmbeddedInbox:
    """Implements `ports.Inbox`."""

    def __init__(
        self,
        messages: Messages,
        wake_socket: WakeSocket,
        channels: Sequence[Channel],
        keys: Sequence[str] | None,
        open_inboxes: list[EmbeddedInbox],
    ) -> None:
        self._messages, self._socket_here, self._open = messages, wake_socket, open_inboxes
        self._channels, self._keys = channels, keys
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
            # In this order: a wake that comes after the look is heard in the wait.
            woken = self._socket_here.drain()
            found = self._look()
            left = deadline - time.monotonic()
            if found or woken or left <= 0:
                return found
            self._socket_here.wait(min(left, LOOK_SECONDS))

    def done(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries and not self._done:
            self._done_since = time.monotonic()
        for row in map(_row_of, deliveries):
            self._given[row] -= 1
            if self._given[row] == 0:
                self._done.append(row)

    def wake(self) -> None:
        self._socket_here.wake()

    def close(self) -> None:
        """Wait until what is done is out of the next reader's way; safe to call twice."""
        self._delete_done()
        wait([deletion for _, deletion in self._deleting], CLOSING_SECONDS)
        if self in self._open:
            self._open.remove(self)
            self._socket_here.close()

    def _look(self) -> Sequence[Delivery]:
        self._settle()
        try:
            fresh = self._messages.take(self._channels, self._keys, TAKEN_AT_ONCE, self._given)
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


def _audience_of(channel: Channel) -> Audience:
    return Audience.WORKERS if channel is Channel.CONTROL else Audience.MANAGER


def _row_of(delivery: Delivery) -> int:
    return int(delivery.where.partition(".")[0])


def _complain(writing: Future[None]) -> None:
    error = writing.exception()
    if error is not None:
        _log.warning("the store did not take what the bus wrote: %s", error)
