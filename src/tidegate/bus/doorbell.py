"""Waking the processes of this machine that wait for messages: a datagram to each one's socket.

    <XDG_RUNTIME_DIR or temp>/tidegate-<uid>/<hash of the store's URL>/<room><one socket an inbox>

The folders are the register: who waits has a socket there, and one that nobody listens to any more
is removed by the next ring. A lost ring costs a second, never a message.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import selectors
import socket
import stat
import tempfile
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from tidegate.errors import BusError

LONGEST_PATH = 100
"""Unix sockets take paths of 107 bytes, of 103 on some systems."""
NAME_BYTES = 6
"""Chance in a socket's name, two letters each."""
_LOOK = b""
"""Something was put into the table."""
_WAKE = b"w"
"""Return to your caller, whether or not there is something."""


class Room(StrEnum):
    """Where somebody waits: what is for the others wakes nobody here."""

    MANAGER = "m"
    WORKERS = "w"


class Doorbell:
    """The sockets of all who wait at one store, on this machine."""

    def __init__(self, store_url: str) -> None:
        digest = hashlib.sha256(store_url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._folder = _private_folder(digest)

    def ear(self, room: Room) -> Ear:
        """Take a place among those who are rung for."""
        return Ear(self._folder / f"{room}{secrets.token_hex(NAME_BYTES)}")

    def look(self, rooms: Collection[Room]) -> None:
        """Tell those who wait in some rooms to look into the table."""
        self._send(_LOOK, rooms)

    def wake(self) -> None:
        """Make all return from their waits."""
        self._send(_WAKE, frozenset(Room))

    def _send(self, datagram: bytes, rooms: Collection[Room]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            for path in self._listed(rooms):
                try:
                    bell.sendto(datagram, path)
                except ConnectionRefusedError:
                    # Its process is dead. Names are never used again, so nobody else's is hit.
                    Path(path).unlink(missing_ok=True)
                except OSError:
                    # The one place where ignoring is right: a full socket rings already, one that
                    # is gone has nobody to wake, and whoever misses a ring looks within a second.
                    continue

    def _listed(self, rooms: Collection[Room]) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return [entry.path for entry in entries if entry.name[0] in rooms]
        except FileNotFoundError:
            # Somebody cleaned the temporary folder: nobody can be rung for, all look by the clock.
            return []


class Ear:
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
        """Take all rings that came; tell whether one of them was a wake."""
        woken = False
        while True:
            try:
                woken = self._socket.recv(16) == _WAKE or woken
            except BlockingIOError:
                return woken

    def wait(self, seconds: float) -> None:
        """Wait for a ring."""
        self._selector.select(max(0.0, seconds))

    def ring(self) -> None:
        """Tell whoever waits here to look into the table."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            try:
                bell.sendto(_LOOK, str(self._path))
            except OSError:
                # As above: it rings already, or it has just been closed.
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
        longest = folder / f"{Room.WORKERS}{'0' * 2 * NAME_BYTES}"
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
