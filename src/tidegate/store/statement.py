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
_Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class _Compiled:
    """The SQL for one dialect and one set of names, and what becomes of the values.

    Values are picked and named by calls that go over all of them at once: a row of `offsets` has
    thirty columns, and nearly none needs to be converted.
    """

    text: str
    positional: bool
    names: Sequence[str]
    """Of the values, in their order."""
    fixed: Mapping[str, Any]
    """Those of them that the statement itself gives."""
    taken: Sequence[tuple[str, _Convert]]
    """How the driver takes a value, where it is not as it is."""
    columns: Sequence[str]
    given: Sequence[tuple[str, _Convert]]
    """How a column is read, where it is not as it is."""

    def bind(self, values: Mapping[str, Any]) -> Any:
        bound = {**self.fixed, **values}
        for name, convert in self.taken:
            bound[name] = convert(bound[name])
        if self.positional:
            return list(map(bound.__getitem__, self.names))
        return bound

    def row(self, found: Sequence[Any]) -> Row:
        row = dict(zip(self.columns, found, strict=True))
        for name, convert in self.given:
            row[name] = convert(row[name])
        return row


class Statement:
    """One statement. What an INSERT or UPDATE sets may be named when it is run."""

    def __init__(self, build: Callable[[str], Sql] | Sql) -> None:
        self._build = build
        """The statement, or what makes it for a dialect that says things differently."""
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any] | None = None) -> list[Row]:
        compiled, found = self._fetch(connection, values or {})
        return [compiled.row(one) for one in found]

    def first(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Row | None:
        """Give the only row, or None."""
        compiled, found = self._fetch(connection, values or {})
        return compiled.row(found[0]) if found else None

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

    def _fetch(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> tuple[_Compiled, Sequence[Sequence[Any]]]:
        compiled = self._for(connection.dialect, values)
        return compiled, _run(connection, compiled.text, compiled.bind(values), fetch=True)

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
        returned = getattr(statement, "exported_columns", ())
        results = {
            one.key: one.type.dialect_impl(dialect).result_processor(dialect, None)
            for one in returned
        }
        binds = {name: kinds[name].dialect_impl(dialect).bind_processor(dialect) for name in names}
        return _Compiled(
            compiled.string,
            bool(compiled.positional),
            names,
            {name: compiled.params[name] for name in names if name not in values},
            _converted(binds),
            list(results),
            _converted(results),
        )


def _converted(known: Mapping[str, _Convert | None]) -> Sequence[tuple[str, _Convert]]:
    return [(name, convert) for name, convert in known.items() if convert is not None]


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
