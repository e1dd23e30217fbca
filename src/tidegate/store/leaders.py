"""Leadership: one row, moved by compare-and-set, timed by the store's clock."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Connection, Insert, select, update

from tidegate.errors import Deposed
from tidegate.model.leadership import Lease
from tidegate.store.dialect import clock, clock_column, insert_into
from tidegate.store.reader import Reader
from tidegate.store.schema import leadership
from tidegate.store.statement import Row, Statement
from tidegate.store.writer import Writer

_LOCKED = Statement(select(leadership).with_for_update())
_SEEN = Statement(lambda dialect: select(leadership, clock_column(dialect).label("now")))
_CHANGE = update(leadership).where(leadership.c.id == 1)


class SqlLeadership:
    """Implements `ports.Leadership`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def read(self) -> Lease:
        return self._seen() or self._writer.write(_lease)

    def take(self, holder: str, length: int) -> int | None:
        return self._writer.write(lambda connection: _take(connection, holder, length))

    def renew(self, term: int, length: int) -> Lease | None:
        # Looked at first: whoever waits to write waits for all others, many times a second.
        seen = self._seen()
        if seen is not None and seen.term == term and _is_fresh(seen, length):
            return seen
        return self._writer.write(lambda connection: _renew(connection, term, length))

    def resign(self, term: int) -> None:
        def write(connection: Connection) -> None:
            at = clock(connection)
            mine = _CHANGE.where(leadership.c.term == term)
            connection.execute(mine.values(holder="", expires_at=0, updated_at=at))

        self._writer.write(write)

    def _seen(self) -> Lease | None:
        """Give row and clock of one moment; None before the first election."""
        row = self._reader.first_of(_SEEN)
        return None if row is None else _lease_of(row, row["now"])


def require_term(connection: Connection, term: int | None) -> None:
    """Let only the leader of this term go on, and nobody be elected before it is done."""
    if term is None:
        return
    standing = _row(connection)
    if standing["term"] != term or not standing["holder"]:
        raise Deposed(f"term {term} is over: {standing['holder'] or 'nobody'} leads now")


def _row(connection: Connection) -> Row:
    """Give the one row, made before the first election, and keep it from others."""
    found = _LOCKED.first(connection)
    if found is None:
        connection.execute(_first(connection.dialect.name))
        found = _LOCKED.rows(connection)[0]
    return found


@cache
def _first(dialect: str) -> Insert:
    nobody = {"term": 0, "holder": "", "expires_at": 0, "elected_at": 0}
    statement = insert_into(dialect, leadership).values(id=1, **nobody, created_at=0, updated_at=0)
    # Another process may make it at the same time.
    return statement.on_conflict_do_nothing(index_elements=[leadership.c.id])


def _lease(connection: Connection) -> Lease:
    return _lease_of(_row(connection), clock(connection))


def _lease_of(row: Row, now: int) -> Lease:
    return Lease(row["term"], row["holder"], row["expires_at"], row["elected_at"], now)


def _is_fresh(lease: Lease, length: int) -> bool:
    """Tell whether somebody leads, and has renewed it not long ago.

    It is written when a third of it is gone: a busy leader turns many times a second.
    """
    return lease.established(length) and lease.expires_at - lease.now >= length * 2 // 3


def _take(connection: Connection, holder: str, length: int) -> int | None:
    lease = _lease(connection)
    if lease.established(length):
        return None
    connection.execute(
        _CHANGE.values(
            term=lease.term + 1,
            holder=holder,
            expires_at=lease.now + length,
            elected_at=lease.now,
            updated_at=lease.now,
        )
    )
    return lease.term + 1


def _renew(connection: Connection, term: int, length: int) -> Lease | None:
    lease = _lease(connection)
    # One that has run out is taken anew, with a new term: others may have begun to act on its end.
    if lease.term != term or not lease.established(length):
        return None
    if not _is_fresh(lease, length):
        connection.execute(_CHANGE.values(expires_at=lease.now + length, updated_at=lease.now))
    return lease
