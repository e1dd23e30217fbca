"""Statements that are run thousands of times a second: compiled once, then run by the driver.

SQLAlchemy writes the SQL and knows the types. What it does beside that at every execution takes ten
times as long as SQLite needs for it, and is left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

Row = dict[str, Any]
Sql = Select[Any] | Insert | Update | Delete | ReturningInsert[Any] | ReturningUpdate[Any]
_Convert = Callable[[Any], Any] | None


@dataclass(frozen=True)
class _Compiled:
    """The SQL for one dialect and one set of names, and what becomes of the values."""

    text: str
    positional: bool
    given: Sequence[tuple[str, Any, _Convert]]
    """The values in their order: name, what it is where none is given, how the driver takes it."""
    columns: Sequence[tuple[str, _Convert]]

    def bind(self, values: Mapping[str, Any]) -> Any:
        bound = [
            values.get(name, fixed) if convert is None else convert(values.get(name, fixed))
            for name, fixed, convert in self.given
        ]
        if self.positional:
            return bound
        return {name: value for (name, _, _), value in zip(self.given, bound, strict=True)}

    def row(self, found: Sequence[Any]) -> Row:
        return {
            name: value if convert is None else convert(value)
            for (name, convert), value in zip(self.columns, found, strict=True)
        }


class Statement:
    """One statement. What an INSERT or UPDATE sets may be named when it is run."""

    def __init__(self, build: Callable[[str], Sql] | Sql) -> None:
        self._build = build
        """The statement, or what makes it for a dialect that says things differently."""
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any] | None = None) -> list[Row]:
        compiled = self._for(connection.dialect, values or {})
        found = _run(connection, compiled.text, compiled.bind(values or {}), fetch=True)
        return [compiled.row(one) for one in found]

    def first(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Row | None:
        """Give the only row, or None."""
        return next(iter(self.rows(connection, values)), None)

    def scalar(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """Give the only value of the only row, or None."""
        row = self.first(connection, values)
        return None if row is None else next(iter(row.values()))

    def run(self, connection: Connection, values: Mapping[str, Any] | None = None) -> None:
        compiled = self._for(connection.dialect, values or {})
        _run(connection, compiled.text, compiled.bind(values or {}))

    def run_many(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for many, which all name the same."""
        if rows:
            compiled = self._for(connection.dialect, rows[0])
            _run(connection, compiled.text, [compiled.bind(row) for row in rows], many=True)

    def _for(self, dialect: Dialect, values: Mapping[str, Any]) -> _Compiled:
        key = (dialect.name, *values)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(dialect, values)
        return found

    def _compile(self, dialect: Dialect, values: Mapping[str, Any]) -> _Compiled:
        statement = self._build(dialect.name) if callable(self._build) else self._build
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(values))
        kinds = {name: bind.type for bind, name in compiled.bind_names.items()}
        names = compiled.positiontup if compiled.positional else list(compiled.params)
        given = [
            (name, compiled.params[name], kinds[name].dialect_impl(dialect).bind_processor(dialect))
            for name in names
        ]
        returned = getattr(statement, "exported_columns", ())
        columns = [
            (column.key, column.type.dialect_impl(dialect).result_processor(dialect, None))
            for column in returned
        ]
        return _Compiled(compiled.string, bool(compiled.positional), given, columns)


def say(connection: Connection, text: str) -> None:
    """Run SQL that has no values and gives no rows."""
    _run(connection, text, ())


def ask(connection: Connection, text: str) -> Any:
    """Run SQL that has no values, and give the only one that it gives."""
    return _run(connection, text, (), fetch=True)[0][0]


def _run(
    connection: Connection, text: str, bound: Any, *, fetch: bool = False, many: bool = False
) -> Sequence[Sequence[Any]]:
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    try:
        if many:
            cursor.executemany(text, bound)
        else:
            cursor.execute(text, bound)
        return cursor.fetchall() if fetch else ()
    except connection.dialect.loaded_dbapi.Error as error:
        dialect = connection.dialect
        gone = dialect.is_disconnect(error, driver, cursor)
        kind = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(
            text, None, error, kind, hide_parameters=True, connection_invalidated=gone
        ) from error
    finally:
        cursor.close()
