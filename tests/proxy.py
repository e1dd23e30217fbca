"""A proxy before PostgreSQL: it cuts connections, holds answers up, or loses that of a COMMIT."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

# What the server says when it has done so; the client may have prepared its own words.
_BEGUN = b"BEGIN\0"
_COMMITTED = b"COMMIT\0"
_CHUNK = 65536


class Proxy:
    """Listens on a port of its own, and passes on what comes."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.delay = 0.0
        """Seconds by which each answer is late."""
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._losing: bytes | None = None
        self.lost = threading.Event()
        """The answer that was to be lost is."""
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.cut()

    def lose_the_answer_to(self, marker: bytes) -> None:
        """Lose the answer to the next COMMIT of a transaction in which a word was said.

        The server commits; who asked for it hears nothing, and its connection is cut.
        """
        self.lost.clear()
        with self._lock:
            self._losing = marker

    def takes_away(self, transaction: bytes) -> bool:
        """Tell whether the answer to the end of a transaction is to be lost; only one is."""
        with self._lock:
            if self._losing is None or self._losing not in transaction:
                return False
            self._losing = None
            return True

    def close(self) -> None:
        with suppress(OSError):
            # Closing alone would not end the wait for one more to come.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(str(self._server))
                except OSError:
                    # It is down: whoever came sees a connection that ends at once.
                    client.close()
                    continue
                pair = _Pair(self, client, server)
                with self._lock:
                    self._pairs.append(pair)
                pair.start()


class _Pair:
    """One connection, from the client to the proxy and from there to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._transaction = b""

    def start(self) -> None:
        for work in (self._forth, self._back):
            threading.Thread(target=work, name="proxy", daemon=True).start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _forth(self) -> None:
        with suppress(OSError):
            while said := self._client.recv(_CHUNK):
                self._transaction += said
                self._server.sendall(said)
        self.cut()

    def _back(self) -> None:
        with suppress(OSError):
            while answer := self._server.recv(_CHUNK):
                if _BEGUN in answer:
                    self._transaction = b""
                if _COMMITTED in answer and self._proxy.takes_away(self._transaction):
                    self._proxy.lost.set()
                    break
                if self._proxy.delay:
                    time.sleep(self._proxy.delay)
                self._client.sendall(answer)
        self.cut()
