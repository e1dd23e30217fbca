"""Steps 4 and 5 of a block: read it through the views, and load it exactly once.

What the table records decides: a block that is in it already is not written again (`delta_writes`).
A load that fails over its rows is done once more with care: these are set aside, the rest written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession

from tidegate.crashpoint import crashpoint
from tidegate.errors import TidegateError
from tidegate.model.execution import Outcome
from tidegate.model.records import Columns, Measures
from tidegate.ports.outside import Recorded, Runtime
from tidegate.spark.looks import Tables
from tidegate.spark.session import SparkHost, blames_a_row, failed, sentence
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.failing_rows import Bisection, FailingRows, Raised, can_be_split
from tidegate.tables.measures import figures_of, measures, observed, written
from tidegate.tables.runner import Load
from tidegate.tables.views import BAD_ROW, BlockViews, Reach, guard
from tidegate.tables.writes import (
    already_loaded,
    columns_of,
    explain,
    fit_table,
    in_order,
    recorded_of,
    skipped,
    written_by,
)

_VACUUMED = ("FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND", "DELTA_VERSION_NOT_FOUND", "VersionNotFound")


class Write(Protocol):
    """One commit to the destination, of a Step or a Reload."""

    def __call__(
        self, session: SparkSession, rows: DataFrame, load: Load, tables: Tables, metadata: str
    ) -> None: ...


class Loader:
    """Implements `Loads`: the same path for Step and Reload, with another write at its end."""

    def __init__(
        self,
        spark: SparkHost,
        tables: Tables,
        aside: FailingRows,
        runtime: Runtime,
        writes: Mapping[Processor, Write],
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._failing = aside
        self._runtime = runtime
        self._writes = writes
        self._views = BlockViews(tables, spark.catalogued)

    def run(self, load: Load) -> Outcome:
        """Load the block, once, and run what comes after."""
        definition, block = load.definition, load.block
        session = self._spark.fresh(load.execution.id)
        try:
            recorded = self._tables.recorded(definition.table, definition.topic)
            if already_loaded(recorded, load):
                self._views.define(session, definition, block)
                outcome = skipped(recorded, self._runtime.uuid())
            else:
                outcome = self._load(session, load)
            self._views.run_statements(session, definition, "after", definition.after)
        except TidegateError:
            raise
        except Exception as error:
            self._tables.require_there()
            raise failed(error, explain(error, definition)) from error
        finally:
            self._spark.forget(load.execution.id)
        crashpoint("block.after_load")
        return outcome

    def interrupt(self, execution_id: str) -> None:
        """Let a run fail where it stands."""
        self._spark.interrupt(execution_id)

    def _load(self, session: SparkSession, load: Load) -> Outcome:
        """Load in one pass; where a row fails, or others wait to be tried again, with care."""
        if load.waiting:
            return self._with_care(load, split=False)
        if load.execution.attempt > 1:
            self._failing.forget(load)
        try:
            return self._attempt(session, load, pin=load.pinned)
        except Exception as error:
            if load.pinned and _is_vacuumed(error):
                return self._over_newest(load)
            if BAD_ROW in str(error):
                return self._with_care(load, split=False)
            if self._may_split(load, error):
                return self._with_care(load, split=True)
            raise

    def _with_care(self, load: Load, *, split: bool) -> Outcome:
        """Find the rows that fail, set them aside, write the rest: over one state of the tables."""
        try:
            raised = self._raised(load) if split else Raised({}, {})
            return self._attempt(
                self._spark.fresh(load.execution.id), load, pin=True, raised=raised
            )
        except Exception as error:
            if load.block.versions and _is_vacuumed(error):
                return self._over_newest(load)
            if split or not self._may_split(load, error):
                raise
        return self._with_care(load, split=True)

    def _over_newest(self, load: Load) -> Outcome:
        """What the block was declared over is vacuumed: the newest data is the best there is."""
        unpinned = replace(load, pinned=False, block=replace(load.block, versions={}))
        outcome = self._load(self._spark.fresh(load.execution.id), unpinned)
        note = "the versions that the block was declared over are gone; read the newest"
        return replace(outcome, note=note)

    def _may_split(self, load: Load, error: Exception) -> bool:
        stepwise = load.definition.processor is Processor.STEP
        return stepwise and blames_a_row(error) and can_be_split(load)

    def _raised(self, load: Load) -> Raised:
        search = Bisection(self._spark.fresh(load.execution.id), self._tables, self._views, load)
        return Raised(search.among_new(), search.among_waiting())

    def _attempt(
        self, session: SparkSession, load: Load, *, pin: bool, raised: Raised | None = None
    ) -> Outcome:
        definition, block, name = load.definition, load.block, load.definition.processor.value
        query_id = self._runtime.uuid()
        session.addTag(query_id)
        # 4. Read: the block's functions first, since a view keeps the function it was made with.
        self._views.define(session, definition, block, _reach(load, raised))
        self._views.run_statements(session, definition, "before", definition.before)
        versions = block.versions if pin else {}
        rows = in_order(definition, self._views.rows(session, definition, versions))
        fit_table(session, self._tables, load, rows)
        if raised is not None:
            rows = self._failing.filter_out(session, rows, load, versions, raised)
            crashpoint(f"{name}.after_aside")
        observation: Observation | None = None
        if definition.keys:
            # A MERGE rewrites whole files, whose statistics then tell of more than the block.
            # And it reads a source twice that is not the same each time, as a counted one.
            observation = Observation(query_id)
            rows = observed(rows, observation, definition.pos, definition.id)
        movable = observation is not None
        guarded = guard(rows, definition, checks=raised is None, movable=movable)
        # 5. Load.
        crashpoint(f"{name}.before_write")
        self._write(session, guarded, load)
        crashpoint(f"{name}.after_write")
        recorded = recorded_of(self._tables, load)
        seen = self._seen(recorded, load, observation, query_id)
        seen, note = self._with_figures(session, definition, seen, recorded.version)
        columns = Columns(columns_of(rows))
        return Outcome(seen.rows, note, recorded.version, records=(seen, columns))

    def _with_figures(
        self,
        session: SparkSession,
        definition: TableDefinition,
        seen: Measures,
        version: int | None,
    ) -> tuple[Measures, str]:
        """Add what the table's own log query says; one that fails is told of, and fails nothing."""
        if not definition.log or version is None:
            return seen, ""
        try:
            figures = figures_of(session, self._tables, definition, version)
        except Exception as error:  # noqa: BLE001  (the load is in the table, whatever this was)
            return seen, f"logs/{definition.table}.sql: {sentence(error)}"
        return replace(seen, figures=figures), ""

    def _write(self, session: SparkSession, rows: DataFrame, load: Load) -> None:
        write = self._writes[load.definition.processor]
        try:
            write(session, rows, load, self._tables, written_by(load))
        except Exception as error:
            # A conflict, or a commit whose answer was lost: what is recorded decides.
            if "ConcurrentTransaction" not in str(error):
                raise
            definition = load.definition
            recorded = self._tables.recorded(definition.table, definition.topic)
            if not already_loaded(recorded, load):
                raise

    def _seen(
        self, recorded: Recorded, load: Load, observation: Observation | None, query_id: str
    ) -> Measures:
        counted = Measures(query_id, recorded.rows or 0)
        if recorded.execution_id != load.execution.id or recorded.version is None:
            return counted
        definition = load.definition
        if observation is None:
            files = self._tables.added(definition.table, recorded.version)
            stepwise = definition.processor is Processor.STEP
            position = (definition.pos, definition.id) if stepwise else ("", "")
            return written(counted, files, *position)
        try:
            return measures(query_id, observation.get)
        except (Py4JError, PySparkException, KeyError):
            # Spark drops the measures together with a relation that it finds to be empty, and a
            # Connect server does not send those of a MERGE.
            return counted


def _is_vacuumed(error: Exception) -> bool:
    return any(sign in str(error) for sign in _VACUUMED)


def _reach(load: Load, raised: Raised | None) -> Reach | None:
    """Say which rows block() is true for; None for those of the block, as declared."""
    if raised is None or load.definition.processor is Processor.RELOAD:
        return None
    again = {row.position for row in load.waiting} - raised.waiting.keys()
    return Reach(load.block.last, load.block.next, frozenset(raised.new), frozenset(again))
