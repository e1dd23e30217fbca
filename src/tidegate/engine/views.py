"""A session made ready for one block: its tables, its functions, its views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from tidegate.engine.failures import sentence
from tidegate.engine.functions import Reach, define_constants, define_functions, is_named
from tidegate.engine.looks import Tables
from tidegate.errors import FlowFailed
from tidegate.model.execution import Block
from tidegate.model.lineage import Definition, Processor
from tidegate.model.statements import statement_tables, statements
from tidegate.model.viewedit import dealt, pinned, typed, typed_statement
from tidegate.model.viewtext import ViewText, read_view, tables_read

_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "FROM", "TABLE"})


class Workbench:
    """Prepares sessions: what a view names is there, and means the block at hand."""

    def __init__(self, tables: Tables, catalogued: set[str]) -> None:
        self._tables = tables
        self._catalogued = catalogued
        """Tables that the catalog, which all sessions of a Spark share, is known to know."""

    def define(
        self,
        session: SparkSession,
        definition: Definition,
        block: Block,
        reach: Reach | None = None,
    ) -> None:
        """Make the functions of the block; `block()` is true for its rows, or for the reach."""
        last, next, seq = block.last, block.next, block.seq
        topic = definition.rebuilds or definition.topic
        text = "\n".join(
            (*definition.views.values(), definition.before, definition.after, definition.log)
        )
        if definition.processor is Processor.RELOAD:
            define_constants(session, topic=topic, last=last, next=next, seq=seq, text=text)
            return
        base = self._tables.columns(definition.base, definition.base_pos, definition.base_id)
        if base is None:
            raise FlowFailed(
                f"{definition.base} has no columns {definition.base_pos} (a bigint or a timestamp)"
                f" and {definition.base_id} (a bigint) to carry a position"
            )
        define_functions(
            session,
            topic=topic,
            kind=base.kind,
            reach=reach or Reach(last, next),
            last=last,
            next=next,
            seq=seq,
            text=text,
        )

    def rows(
        self, session: SparkSession, definition: Definition, versions: Mapping[str, int]
    ) -> DataFrame:
        """Step 4: make the views and give the rows of all transforms together."""
        texts = {name: read_view(name, text) for name, text in definition.views.items()}
        self._register(session, definition, tables_read(list(texts), texts))
        pins = {name.lower(): version for name, version in versions.items()}
        frames: dict[str, DataFrame] = {}
        for name, view in texts.items():
            arguments = {key: definition.vars[key] for key in view.parameters}
            own = dealt(view.text, definition.shard) if definition.shard else view.text
            frame = session.sql(typed(pinned(own, pins)), args=arguments or None)
            if _is_read(name, texts, definition):
                frame.createOrReplaceTempView(f"`{name}`")
            frames[name.lower()] = frame
        wanted = (frames[name.lower()] for name in definition.transforms)
        return reduce(lambda above, below: above.unionByName(below), wanted)

    def run_statements(
        self, session: SparkSession, definition: Definition, field: str, text: str
    ) -> None:
        """Run `before` or `after`, statement by statement."""
        for statement in statements(text):
            try:
                self._register(session, definition, statement_tables(statement))
                frame = session.sql(typed_statement(statement))
                if statement.split(maxsplit=1)[0].upper() in _QUERIES:
                    # Spark runs a command at once, and a query only when somebody wants its rows.
                    frame.write.format("noop").mode("overwrite").save()
            except Exception as error:
                start = " ".join(statement.split())[:60]
                raise FlowFailed(f"{field} ({start}): {sentence(error)}") from error

    def _register(
        self, session: SparkSession, definition: Definition, names: Iterable[str]
    ) -> None:
        """Let the session know tables of the lake by name; what it knows already stays as it is."""
        # Spark and the readers of views take names without regard to case; folders do not.
        listed = {name.lower(): name for name in (*definition.listed, definition.table)}
        for name in names:
            spelled = listed.get(name.lower(), name)
            if spelled in self._catalogued:
                continue
            if spelled.count(".") == 1 and self._tables.exists(spelled):
                register_table(session, spelled, self._tables.path(spelled))
                self._catalogued.add(spelled)


def _is_read(name: str, views: Mapping[str, ViewText], definition: Definition) -> bool:
    """Tell whether anything reads a view by its name; to make one costs a statement."""
    by_views = any(name.lower() in view.views for view in views.values())
    return by_views or is_named(name, f"{definition.after}\n{definition.log}")


def register_table(session: SparkSession, name: str, path: str) -> None:
    """Put a table that stands in the lake into the session's catalog."""
    if session.catalog.tableExists(name):
        return
    database, _, table = name.partition(".")
    session.sql(f"CREATE SCHEMA IF NOT EXISTS `{database}`")
    session.sql(
        f"CREATE TABLE IF NOT EXISTS `{database}`.`{table}` USING DELTA LOCATION {literal(path)}"
    )


def read_table(session: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Read a table of the lake by its place, as of a version where one is given."""
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(path)


def read_base(
    session: SparkSession, tables: Tables, definition: Definition, versions: Mapping[str, int]
) -> DataFrame:
    """Read the rows of the base table that are the topic's."""
    table = read_table(session, tables.path(definition.base), versions.get(definition.base))
    return table.where(definition.shard.condition()) if definition.shard else table


def literal(text: str) -> str:
    """Write a text as a Spark string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
