"""PostgreSQL's NOTIFY, heard on a connection of its own that is made anew when it is cut."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

from psycopg import Connection as Heard
from psycopg import Error as HeardError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

CHANNEL = "tidegate_messages"
AGAIN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Notices:
    """Implements `ports.Listening`: a thread that waits, and rings at each notice."""

    def __init__(self, engine: Engine, ring: Callable[[], None]) -> None:
        self._engine, self._ring = engine, ring
        self._stop, self._stopping = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._stopping.close()
        self._thread.join()
        self._stop.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as stop:
            stop.register(self._stop, selectors.EVENT_READ)
            while True:
                try:
                    self._hear()
                except (SQLAlchemyError, HeardError) as error:
                    _log.warning("notices of the store are not heard: %s", _first_line(error))
                if stop.select(AGAIN_SECONDS):
                    return

    def _hear(self) -> None:
        """Ring at notices until the connection is cut or the end is wanted."""
        with self._engine.connect() as connection:
            try:
                self._ring_at_notices(connection)
            finally:
                # It listens, and may be cut: nobody else is to have it.
                connection.invalidate()

    def _ring_at_notices(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        heard = connection.connection.driver_connection
        assert isinstance(heard, Heard)
        # For whatever came before this connection listened.
        self._ring()
        with selectors.DefaultSelector() as either:
            either.register(self._stop, selectors.EVENT_READ)
            either.register(heard, selectors.EVENT_READ)
            while all(key.fileobj is not self._stop for key, _ in either.select()):
                if any(True for _ in heard.notifies(timeout=0)):
                    self._ring()


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", error)).partition("\n")[0]
