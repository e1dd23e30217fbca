"""Reading: one statement at a time, fetched whole, so that no cursor holds up a commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Executable, RowMapping
from sqlalchemy.exc import SQLAlchemyError

from tidegate.errors import StoreError
from tidegate.store.backend import Backend
from tidegate.store.statement import Row, Statement

Values = Mapping[str, Any] | None
"""What a statement that was built once is asked with."""


class Reader:
    """The connection beside the writer's."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = threading.Event()

    def rows(self, statement: Executable, values: Values = None) -> Sequence[RowMapping]:
        with self._connected() as connection:
            return connection.execute(statement, values).mappings().all()

    def plain(self, statement: Executable, values: Values = None) -> Sequence[tuple[Any, ...]]:
        """Give rows as the driver has them, where there are so many that more would cost."""
        with self._connected() as connection, connection.execute(statement, values) as result:
            return result.cursor.fetchall() if result.cursor else []

    def first(self, statement: Executable, values: Values = None) -> RowMapping | None:
        """Give the only row, or None."""
        return next(iter(self.rows(statement, values)), None)

    def rows_of(self, statement: Statement, values: Values = None) -> list[Row]:
        """Give the rows of what is asked many times a second."""
        with self._connected() as connection:
            return statement.rows(connection, values)

    def first_of(self, statement: Statement, values: Values = None) -> Row | None:
        """Give the only row of such a statement, or None."""
        with self._connected() as connection:
            return statement.first(connection, values)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._closed.is_set():
            raise StoreError("the store is closed; open it again to read from it")
        try:
            with self._backend.engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._backend.explain(error) from None

    def close(self) -> None:
        self._closed.set()
        self._backend.engine.dispose()
