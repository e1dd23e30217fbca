"""The store put together: one backend, one writer, one reader, and the nouns over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.model.flow import Kind
from tidegate.store.backends import Backend, backend_for, upgrade
from tidegate.store.blocks import SqlBlocks
from tidegate.store.datasets import SqlDatasets, SqlFailures
from tidegate.store.definitions import DefinitionReader, ReadDefinition, SqlDefinitions
from tidegate.store.executions import SqlExecutions
from tidegate.store.fleet import SqlFlowControls, SqlInstances, SqlLeadership
from tidegate.store.messages import SqlMessages, SqlRejected
from tidegate.store.positions import SqlOffsets
from tidegate.store.records import SqlJournal, SqlPhases, SqlRebuilds
from tidegate.store.retention import SqlRetention
from tidegate.store.writer import Reader, Writer


@dataclass(frozen=True)
class SqlStore:
    """Implements `ports.Store`."""

    backend: Backend
    reader: Reader
    writer: Writer
    definitions: SqlDefinitions
    offsets: SqlOffsets
    blocks: SqlBlocks
    executions: SqlExecutions
    datasets: SqlDatasets
    journal: SqlJournal
    failures: SqlFailures
    instances: SqlInstances
    leadership: SqlLeadership
    phases: SqlPhases
    controls: SqlFlowControls
    messages: SqlMessages
    rejected: SqlRejected
    rebuilds: SqlRebuilds
    retention: SqlRetention

    def close(self) -> None:
        """Write what waits and let go of the database; safe to call twice."""
        self.writer.close()
        self.reader.close()


def open_store(
    url: str, kinds: Mapping[Kind, ReadDefinition], *, lock_path: Path | None = None
) -> SqlStore:
    """Open the store that a URL names, made or migrated as needed; raises StoreError.

    `kinds` say how the definitions of each are read back. `lock_path` is where SQLite's writers
    queue; beside the database when not given.
    """
    backend = backend_for(url, lock_path)
    try:
        upgrade(backend)
    except BaseException:
        backend.engine.dispose()
        raise
    return store_over(backend, Reader(backend), Writer(backend), kinds)


def store_over(
    backend: Backend, reader: Reader, writer: Writer, kinds: Mapping[Kind, ReadDefinition]
) -> SqlStore:
    """Put the nouns over what reads and what writes."""
    definitions = DefinitionReader(kinds)
    return SqlStore(
        backend=backend,
        reader=reader,
        writer=writer,
        definitions=SqlDefinitions(reader, writer, definitions),
        offsets=SqlOffsets(reader, writer),
        blocks=SqlBlocks(reader, writer, definitions),
        executions=SqlExecutions(reader, writer),
        datasets=SqlDatasets(reader),
        journal=SqlJournal(reader),
        failures=SqlFailures(reader, writer),
        instances=SqlInstances(reader, writer),
        leadership=SqlLeadership(reader, writer),
        phases=SqlPhases(reader, writer),
        controls=SqlFlowControls(reader, writer),
        messages=SqlMessages(reader, writer, backend.listening),
        rejected=SqlRejected(reader, writer),
        rebuilds=SqlRebuilds(reader, writer, definitions),
        retention=SqlRetention(reader, writer),
    )
