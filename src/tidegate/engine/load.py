"""Steps 4 and 5 of a block: read it through the views, and load it exactly once.

Delta's own log is the judge. Each write carries the topic as transaction id and the block's seq as
its version, so Delta drops a repeat; what is recorded there is read before the write and after it,
from the files and not from a cache of the JVM.

    recorded < seq              write, read back, require recorded = seq
    recorded = seq, same block  it is in: skip the write
    anything else               the table is not what the store believes: stop the topic
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession

from tidegate.crashpoint import crashpoint
from tidegate.engine.aside import Raised, SetAside
from tidegate.engine.bisect import Bisection, can_be_split
from tidegate.engine.destination import columns_of, fit_table, in_order
from tidegate.engine.failures import blames_a_row, sentence
from tidegate.engine.figures import figures_of
from tidegate.engine.functions import Reach
from tidegate.engine.guards import BAD_POSITION, BAD_ROW, guard
from tidegate.engine.looks import Tables, app_id
from tidegate.engine.measures import measures, observed, written
from tidegate.engine.session import SparkHost
from tidegate.engine.views import Workbench
from tidegate.errors import FlowFailed, TidegateError, TopicStopped
from tidegate.model.execution import Block, Measures, Outcome, Work
from tidegate.model.lineage import Definition, Processor
from tidegate.ports import Recorded, Runtime

_VACUUMED = ("FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND", "DELTA_VERSION_NOT_FOUND", "VersionNotFound")


class Write(Protocol):
    """One commit to the destination, of a Step or a Reload."""

    def __call__(
        self, session: SparkSession, rows: DataFrame, work: Work, tables: Tables, metadata: str
    ) -> None: ...


class Loader:
    """A Runner for tables: the same path for Step and Reload, with another write at its end."""

    def __init__(
        self,
        spark: SparkHost,
        tables: Tables,
        aside: SetAside,
        runtime: Runtime,
        writes: dict[Processor, Write],
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._aside = aside
        self._runtime = runtime
        self._writes = writes
        self._bench = Workbench(tables, spark.catalogued)

    def run(self, work: Work) -> Outcome:
        """Load the block, once, and run what comes after."""
        definition, block = work.definition, work.block
        session = self._spark.fresh(work.execution.id)
        try:
            recorded = self._tables.recorded(definition)
            if already_loaded(recorded, definition, block):
                self._bench.define(session, definition, block)
                outcome = skipped(recorded, self._runtime.uuid())
            else:
                outcome = self._load(session, work)
            self._bench.run_statements(session, definition, "after", definition.after)
        except TidegateError:
            raise
        except Exception as error:
            raise FlowFailed(explain(error, definition)) from error
        finally:
            self._spark.forget(work.execution.id)
        crashpoint("block.after_load")
        return outcome

    def interrupt(self, execution_id: str) -> None:
        """Let a run fail where it stands."""
        self._spark.interrupt(execution_id)

    def _load(self, session: SparkSession, work: Work) -> Outcome:
        """Load in one pass; where a row fails, or others wait to be tried again, with care."""
        if work.waiting:
            return self._with_care(work, split=False)
        if work.execution.attempt > 1:
            self._aside.forget(work)
        try:
            return self._attempt(session, work, pin=work.pinned)
        except Exception as error:
            if work.pinned and _is_vacuumed(error):
                return self._over_newest(work)
            if BAD_ROW in str(error):
                return self._with_care(work, split=False)
            if self._may_split(work, error):
                return self._with_care(work, split=True)
            raise

    def _with_care(self, work: Work, *, split: bool) -> Outcome:
        """Find the rows that fail, set them aside, write the rest: over one state of the tables."""
        try:
            raised = self._raised(work) if split else Raised({}, {})
            return self._attempt(
                self._spark.fresh(work.execution.id), work, pin=True, raised=raised
            )
        except Exception as error:
            if work.block.versions and _is_vacuumed(error):
                return self._over_newest(work)
            if split or not self._may_split(work, error):
                raise
        return self._with_care(work, split=True)

    def _over_newest(self, work: Work) -> Outcome:
        """What the block was declared over is vacuumed: the newest data is the best there is."""
        unpinned = replace(work, pinned=False, block=replace(work.block, versions={}))
        outcome = self._load(self._spark.fresh(work.execution.id), unpinned)
        note = "the versions that the block was declared over are gone; read the newest"
        return replace(outcome, note=note)

    def _may_split(self, work: Work, error: Exception) -> bool:
        stepwise = work.definition.processor is Processor.STEP
        return stepwise and blames_a_row(error) and can_be_split(work)

    def _raised(self, work: Work) -> Raised:
        search = Bisection(self._spark.fresh(work.execution.id), self._tables, self._bench, work)
        return Raised(search.among_new(), search.among_waiting())

    def _attempt(
        self, session: SparkSession, work: Work, *, pin: bool, raised: Raised | None = None
    ) -> Outcome:
        definition, block, name = work.definition, work.block, work.definition.processor.value
        query_id = self._runtime.uuid()
        session.addTag(query_id)
        # 4. Read: the block's functions first, since a view keeps the function it was made with.
        self._bench.define(session, definition, block, _reach(work, raised))
        self._bench.run_statements(session, definition, "before", definition.before)
        versions = block.versions if pin else {}
        rows = in_order(definition, self._bench.rows(session, definition, versions))
        fit_table(session, self._tables, work, rows)
        if raised is not None:
            rows = self._aside.sift(session, rows, work, versions, raised)
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
        self._write(session, guarded, work)
        crashpoint(f"{name}.after_write")
        recorded = require_recorded(self._tables, work)
        seen = self._seen(recorded, work, observation, query_id)
        outcome = Outcome(seen.rows, recorded.version, seen, columns=columns_of(rows))
        return self._with_figures(session, definition, outcome)

    def _with_figures(
        self, session: SparkSession, definition: Definition, outcome: Outcome
    ) -> Outcome:
        """Add what the table's own log query says; one that fails is told of, and fails nothing."""
        if not definition.log or outcome.measures is None or outcome.committed_version is None:
            return outcome
        try:
            figures = figures_of(session, self._tables, definition, outcome.committed_version)
        except Exception as error:  # noqa: BLE001  (the load is in the table, whatever this was)
            return replace(outcome, note=f"logs/{definition.table}.sql: {sentence(error)}")
        return replace(outcome, measures=replace(outcome.measures, figures=figures))

    def _write(self, session: SparkSession, rows: DataFrame, work: Work) -> None:
        write = self._writes[work.definition.processor]
        try:
            write(session, rows, work, self._tables, written_by(work))
        except Exception as error:
            # A conflict, or a commit whose answer was lost: what is recorded decides.
            if "ConcurrentTransaction" not in str(error):
                raise
            recorded = self._tables.recorded(work.definition)
            if not already_loaded(recorded, work.definition, work.block):
                raise

    def _seen(
        self, recorded: Recorded, work: Work, observation: Observation | None, query_id: str
    ) -> Measures:
        counted = Measures(query_id, recorded.rows or 0)
        if recorded.execution_id != work.execution.id or recorded.version is None:
            return counted
        definition = work.definition
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


def skipped(recorded: Recorded, query_id: str) -> Outcome:
    """Give the outcome of a block that an earlier attempt has written."""
    rows = recorded.rows or 0
    note = "the block was in the table already: its write was skipped"
    return Outcome(rows, recorded.version, Measures(query_id, rows), note)


def require_recorded(tables: Tables, work: Work) -> Recorded:
    """Read back what the table records after a write, which must be the block at hand."""
    definition, block = work.definition, work.block
    recorded = tables.recorded(definition)
    if recorded.seq != block.seq:
        raise TopicStopped(
            f"{definition.table} records block {recorded.seq} after block {block.seq} was"
            " written; somebody else writes under this topic's name"
        )
    return recorded


def _is_vacuumed(error: Exception) -> bool:
    return any(sign in str(error) for sign in _VACUUMED)


def _reach(work: Work, raised: Raised | None) -> Reach | None:
    """Say which rows block() is true for; None for those of the block, as declared."""
    if raised is None or work.definition.processor is Processor.RELOAD:
        return None
    again = {row.position for row in work.waiting} - raised.waiting.keys()
    return Reach(work.block.last, work.block.next, frozenset(raised.new), frozenset(again))


def already_loaded(recorded: Recorded, definition: Definition, block: Block) -> bool:
    """Hold the block against what the table records; raise where the two cannot both be true."""
    if recorded.seq < block.seq:
        return False
    table, topic = definition.table, definition.topic
    if recorded.seq > block.seq:
        raise TopicStopped(
            f"{table} already holds block {recorded.seq} of {topic}, and the store is only at"
            f" block {block.seq}: was the store restored from an old copy?"
        )
    if recorded.next is None:
        raise TopicStopped(
            f"{table} records block {block.seq} of {topic}, but the commit that wrote it is gone"
            " from its log: whether it holds the rows that the store declares cannot be told"
        )
    if (recorded.last, recorded.next) == (block.last, block.next):
        return True
    raise TopicStopped(
        f"{table} holds block {block.seq} of {topic} as rows in ({recorded.last}, {recorded.next}]"
        f" and the store declares it as ({block.last}, {block.next}]"
    )


def written_by(work: Work) -> str:
    """Say in the commit whose write it is, and of which block."""
    block = work.block
    return json.dumps(
        {
            "topic": work.definition.topic,
            "seq": block.seq,
            "last": [block.last.pos, block.last.id],
            "next": [block.next.pos, block.next.id],
            "execution": work.execution.id,
            "attempt": work.execution.attempt,
            "term": work.execution.term,
        }
    )


def explain(error: BaseException, definition: Definition) -> str:
    """Say why the load failed; our own markers first."""
    text = str(error)
    if BAD_POSITION in text:
        return (
            f"a view of {definition.topic} gives a {definition.pos} or {definition.id} outside of"
            " the block; give on the base row's position as block() got it"
        )
    if "TIDEGATE_KIND" in text:
        return " ".join(text.partition("TIDEGATE_KIND")[2].split("SQLSTATE")[0].split())
    return sentence(error)


def transaction(topic: str, seq: int, metadata: str) -> dict[str, str]:
    """Give the writer's options that make a repeat of the block a no-op."""
    return {"txnAppId": app_id(topic), "txnVersion": str(seq), "userMetadata": metadata}
