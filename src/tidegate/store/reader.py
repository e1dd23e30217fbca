"""Reading: one statement at a time, fetched whole, so that no cursor holds up a commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sqlalchemy import Executable, RowMapping
from sqlalchemy.exc import SQLAlchemyError

from tidegate.errors import StoreError
from tidegate.store.backend import Backend


class Reader:
    """The connection beside the writer's."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = threading.Event()

    def rows(self, statement: Executable) -> Sequence[RowMapping]:
        if self._closed.is_set():
            raise StoreError("the store is closed; open it again to read from it")
        try:
            with self._backend.engine.connect() as connection:
                return connection.execute(statement).mappings().all()
        except SQLAlchemyError as error:
            raise self._backend.explain(error) from None

    def first(self, statement: Executable) -> RowMapping | None:
        """Give the only row, or None."""
        return next(iter(self.rows(statement)), None)

    def close(self) -> None:
        self._closed.set()
        self._backend.engine.dispose()
