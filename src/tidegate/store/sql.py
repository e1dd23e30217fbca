"""The store put together: one backend, one writer, one reader, and the nouns over them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate.store.backend import Backend, backend_for
from tidegate.store.datasets import SqlDatasets
from tidegate.store.executions import SqlExecutions
from tidegate.store.failures import SqlFailures
from tidegate.store.instances import SqlInstances
from tidegate.store.journal import SqlJournal
from tidegate.store.leaders import SqlLeadership
from tidegate.store.lineages import SqlLineages
from tidegate.store.messages import SqlMessages
from tidegate.store.offsets import SqlOffsets
from tidegate.store.phases import SqlPhases
from tidegate.store.reader import Reader
from tidegate.store.rebuilds import SqlRebuilds
from tidegate.store.rejected import SqlRejected
from tidegate.store.upgrade import upgrade
from tidegate.store.wishes import SqlWishes
from tidegate.store.writer import Writer


@dataclass(frozen=True)
class SqlStore:
    """Implements `ports.Store`."""

    backend: Backend
    reader: Reader
    writer: Writer
    lineages: SqlLineages
    offsets: SqlOffsets
    executions: SqlExecutions
    datasets: SqlDatasets
    journal: SqlJournal
    failures: SqlFailures
    instances: SqlInstances
    leadership: SqlLeadership
    phases: SqlPhases
    wishes: SqlWishes
    messages: SqlMessages
    rejected: SqlRejected
    rebuilds: SqlRebuilds

    def close(self) -> None:
        """Write what waits and let go of the database; safe to call twice."""
        self.writer.close()
        self.reader.close()


def open_store(url: str, *, lock_path: Path | None = None) -> SqlStore:
    """Open the store that a URL names, made or migrated as needed; raises StoreError.

    `lock_path` is where SQLite's writers queue; beside the database when not given.
    """
    backend = backend_for(url, lock_path)
    try:
        upgrade(backend)
    except BaseException:
        backend.engine.dispose()
        raise
    return store_over(backend, Reader(backend), Writer(backend))


def store_over(backend: Backend, reader: Reader, writer: Writer) -> SqlStore:
    """Put the nouns over what reads and what writes."""
    return SqlStore(
        backend=backend,
        reader=reader,
        writer=writer,
        lineages=SqlLineages(reader, writer),
        offsets=SqlOffsets(reader, writer),
        executions=SqlExecutions(reader, writer),
        datasets=SqlDatasets(reader),
        journal=SqlJournal(reader),
        failures=SqlFailures(reader, writer),
        instances=SqlInstances(reader, writer),
        leadership=SqlLeadership(reader, writer),
        phases=SqlPhases(reader, writer),
        wishes=SqlWishes(reader, writer),
        messages=SqlMessages(reader, writer, backend.listening),
        rejected=SqlRejected(reader, writer),
        rebuilds=SqlRebuilds(reader, writer),
    )
