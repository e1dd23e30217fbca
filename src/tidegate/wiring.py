"""The composition root: the only module that picks back ends and puts the parts together.

`KINDS` is the only registry: a kind of flow is known to the rest by what it brings there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import Problem
from tidegate.model.flow import Changes, Definition, Kind
from tidegate.project.folder import KindReader, Project, load_project
from tidegate.runtime import FlockHolders, RealRuntime
from tidegate.settings import Settings
from tidegate.tables.definition import Processor, TableDefinition, tables_in
from tidegate.tables.reading import TABLES

if TYPE_CHECKING:
    from tidegate.control.executor import Executor
    from tidegate.control.foreground import Delegate, Foreground
    from tidegate.control.insights import Insights
    from tidegate.control.lifecycle import Lifecycle
    from tidegate.control.manager import Manager
    from tidegate.control.worker import Worker
    from tidegate.model.instances import Pace, Sharing
    from tidegate.ports.kinds import Instruction, Planner, Reporter, Runner, Watcher
    from tidegate.ports.outside import Bus, Landing
    from tidegate.ports.store import Store
    from tidegate.spark.looks import Tables
    from tidegate.spark.session import SparkHost
    from tidegate.tables.block_finder import DeltaLake
    from tidegate.tables.care import SparkCaretaker
    from tidegate.tables.planner import TablePlanner
    from tidegate.tables.rebuild import Rebuilder, Shadows


FEW_ROWS = 100_000
"""Up to so many a JVM that compiles little is through first, starting included."""


@dataclass
class Parts:
    """What the commands work with; Spark comes in only where it is asked for."""

    project: Project
    store: Store
    tables: Tables
    holders: FlockHolders
    runtime: RealRuntime

    @property
    def pace(self) -> Pace:
        settings = self.project.settings
        return replace(settings.control.pace, keep=settings.store.keep)

    @property
    def topics(self) -> Mapping[str, TableDefinition]:
        """The definitions of the project's tables."""
        return tables_in(self.project.definitions)

    def planner(self) -> TablePlanner:
        """Make a look at all tables of the project, as of now, that needs no JVM."""
        from tidegate.tables.planner import TablePlanner

        return TablePlanner(self.topics, self.store, self.tables, self.holders, self.runtime)

    def planners(self) -> Mapping[Kind, Planner]:
        """Make what plans the flows of each kind, as they are applied."""
        return {kind: one.planner(self) for kind, one in KINDS.items()}

    def insights(self) -> Insights:
        """Put together what commands, API and pages print from."""
        from tidegate.control.insights import Insights

        return Insights(self.store, self._by_hand, self.pace.lease)

    @contextmanager
    def bus(self) -> Iterator[Bus]:
        """Open the bus for as long as the block lasts."""
        from tidegate.bus import open_bus

        settings = self.project.settings
        bus = open_bus(settings.bus, settings.store_url, self.store.messages, self.runtime.now)
        try:
            yield bus
        finally:
            bus.close()

    @contextmanager
    def spark(self, *, quick: bool = False) -> Iterator[SparkHost]:
        """Give a Spark that starts at its first use and ends with the block.

        One that is quick compiles little, which suits few rows.
        """
        from tidegate.spark.delta_log import is_s3, spark_settings
        from tidegate.spark.session import SparkHost

        settings = self.project.settings
        s3 = is_s3(settings.lake_path)
        reached = settings.lake.s3
        conf = spark_settings(reached.endpoint, reached.region) if s3 else {}
        host = SparkHost(
            settings.spark.master,
            {**conf, **settings.spark.conf},
            settings.scratch,
            pass_fds=(self.holders.hold(),),
            own_catalog=settings.lake.catalog == "spark",
            s3=s3,
            quick=quick,
        )
        try:
            yield host
        finally:
            host.stop()
            self.holders.release()

    def lake(self, spark: SparkHost) -> DeltaLake:
        from tidegate.tables.block_finder import DeltaLake

        return DeltaLake(self.tables, spark)

    def landing(self, spark: SparkHost) -> Landing:
        """Put together what brings rows of any flow into tables of the lake."""
        from tidegate.spark.landing import DeltaLanding

        return DeltaLanding(spark, self.tables, self.runtime, self._landed_up_to)

    def _landed_up_to(self, table: str) -> int | None:
        offset = self.store.offsets.get(table)
        return offset.last.pos if offset else None

    def executor(self, spark: SparkHost, reporter: Reporter) -> Executor:
        """Put together what runs a block."""
        from tidegate.control.executor import Executor

        return Executor(
            self.store,
            {kind: one.runner(self, spark) for kind, one in KINDS.items()},
            self.holders,
            self.runtime,
            reporter,
            self.pace.pause_after,
            spark.works,
            self.sharing,
        )

    def shadows(self, spark: SparkHost) -> Shadows:
        """Put together what keeps the tables that are built beside others."""
        from tidegate.tables.rebuild import Shadows

        return Shadows(self.store, self.lake(spark), self.holders, self.runtime)

    def caretaker(self, spark: SparkHost) -> SparkCaretaker:
        """Put together what tidies tables."""
        from tidegate.model.duration import parse_duration
        from tidegate.tables.care import CareRules, SparkCaretaker

        wanted = self.project.settings.lake
        rules = CareRules(wanted.compact_files, parse_duration(wanted.vacuum_after))
        return SparkCaretaker(spark, self.tables, rules, self.runtime)

    def foreground(self, spark: SparkHost, watcher: Watcher) -> Foreground:
        """Put together a run by hand."""
        from tidegate.control.foreground import Foreground
        from tidegate.control.leader import BITE
        from tidegate.control.slot import NoReporter

        executor, shadows = self.executor(spark, NoReporter()), self.shadows(spark)

        def clear() -> None:
            shadows.sweep()
            # No leader may ever do it: a bite with each run is enough for what runs by hand.
            self.store.retention.trim(self.runtime.now() - self.pace.keep, None, BITE)

        return Foreground(self._by_hand(), executor, watcher, clear)

    def rebuilder(self, spark: SparkHost, watcher: Watcher) -> Rebuilder:
        """Put together a rebuild by hand."""
        from tidegate.control.slot import NoReporter
        from tidegate.tables.rebuild import Rebuilder

        return Rebuilder(
            self.topics,
            self.store,
            self.lake(spark),
            self.shadows(spark),
            self.executor(spark, NoReporter()),
            self.planner,
            self.runtime,
            watcher,
        )

    def reads_little(self, flows: Collection[str]) -> bool:
        """Tell whether a run of these flows is over before a compiler would pay."""
        return sum(planner.rows_to_read(flows) for planner in self._by_hand()) <= FEW_ROWS

    def _by_hand(self) -> list[Planner]:
        """Make what plans for a person: tables as of the project at hand, one time for a run."""
        others = {kind: one for kind, one in self.planners().items() if kind is not Kind.TABLE}
        return [self.planner(), *others.values()]

    def is_managed(self) -> bool:
        """Tell whether a manager leads now, and has somebody to build tables."""
        leads = self.store.leadership.read().established(self.pace.lease)
        return leads and any(
            one.works and Kind.TABLE in one.kinds and self.holders.lives(one.process)
            for one in self.store.instances.all()
        )

    def delegate(self, watcher: Watcher, user: str) -> Delegate:
        """Put together a run by hand that the manager does."""
        from tidegate.control.foreground import Delegate

        planners, lease = self._by_hand(), self.pace.lease
        return Delegate(planners, self.store, self.runtime, watcher, user, self.is_managed, lease)

    @property
    def sharing(self) -> Sharing:
        """Give what the lake's storage lets several processes do."""
        from tidegate.model.instances import Sharing
        from tidegate.spark.delta_log import writers_of

        settings = self.project.settings
        path = settings.lake_path
        return Sharing(writers_of(path, settings.spark.conf), path, self.pace.dead_after)

    def require_own_lake(self) -> None:
        """Refuse early to join workers that have the lake: before Spark is started for nothing.

        It is a look, no more: the registration of a worker and the claim of a run decide.
        """
        from tidegate.errors import WrongUse
        from tidegate.model.instances import overdue

        instances, now = self.store.instances.all(), self.store.leadership.read().now
        silent = overdue(instances, now, 0, self.pace.dead_after)
        living = [
            one
            for one in instances
            if one.ours and one.lives and one not in silent and self.holders.lives(one.process)
        ]
        problem = self.sharing.clash(self.holders.me, living, {})
        if problem:
            raise WrongUse(problem)

    def manager(self, bus: Bus, life: Lifecycle) -> Manager:
        """Put together a candidate for leadership."""
        from tidegate.control.manager import Manager

        outside = (self.store, bus, self.planners, self.holders, self.runtime)
        return Manager(*outside, self.pace, life, self.sharing)

    def worker(self, spark: SparkHost, bus: Bus, life: Lifecycle, hiring: Hiring) -> Worker:
        """Put together a worker process."""
        from tidegate.control.slot import BusReporter
        from tidegate.control.worker import Identity, Worker

        reporter = BusReporter(bus, self.runtime)
        executor = self.executor(spark, reporter)
        me = self.holders.me
        host, pid, _ = me.split(":")
        return Worker(
            Identity(hiring.name or host, host, int(pid), me, hiring.tags),
            hiring.slots,
            self.store,
            bus,
            executor,
            reporter,
            self.runtime,
            self.pace,
            life,
            lives=spark.lives,
            holders=self.holders,
            lake=self.sharing,
            foreign=self._instruct if hiring.foreign_manager else None,
        )

    def _instruct(self, flow: str) -> Instruction | None:
        """Plan one flow for a manager that leaves that to us."""
        for planner in self._by_hand():
            if flow in planner.verdicts(eager=True):
                (instruction,) = planner.instruct([flow])
                return instruction
        return None


@dataclass(frozen=True)
class Hiring:
    """How a worker process is to be."""

    name: str = ""
    slots: int = 1
    tags: tuple[str, ...] = ()
    foreign_manager: bool = False


@dataclass(frozen=True)
class KindParts:
    """What a kind of flow brings."""

    reader: KindReader[Any]
    """Reads its files of a project."""
    read: Callable[[Mapping[str, Any]], Definition]
    """Reads back what the store keeps of a definition."""
    planner: Callable[[Parts], Planner]
    runner: Callable[[Parts, SparkHost], Runner]
    check: Callable[[Project], list[Problem]]
    """Judges a project by what is outside of it, without a JVM."""
    analyse: Callable[[Parts, SparkHost], list[Problem]]
    """Judges a project by what Spark says of it."""
    misfits: Callable[[Parts, Changes], list[Problem]]
    """Judges changes by what was done already; none are applied unless all are sound."""


def _table_planner(parts: Parts) -> Planner:
    from tidegate.tables.planner import TablePlanner

    return TablePlanner(None, parts.store, parts.tables, parts.holders, parts.runtime)


def _table_runner(parts: Parts, spark: SparkHost) -> Runner:
    from tidegate.tables.failing_rows import FailingRows
    from tidegate.tables.loading import Loader
    from tidegate.tables.runner import TableRunner
    from tidegate.tables.writes import Publisher, write_reload, write_step

    tables, runtime = parts.tables, parts.runtime
    failing_rows = FailingRows(tables, parts.store.failures, runtime)
    writes = {Processor.STEP: write_step, Processor.RELOAD: write_reload}
    return TableRunner(
        parts.store,
        parts.lake(spark),
        Loader(spark, tables, failing_rows, runtime, writes),
        Publisher(spark, tables, runtime),
        parts.caretaker(spark),
        runtime,
    )


def _check_tables(project: Project) -> list[Problem]:
    from tidegate.tables.lake_checks import outside_problems

    tables = open_lake(project.settings, RealRuntime())
    return outside_problems(project, tables, lambda: _seen(project))


def _seen(project: Project) -> list[str]:
    """Name the tables that were there once; a check makes no store where there is none."""
    if not has_store(project.settings):
        return []
    with open_parts(project) as parts:
        return list(parts.store.offsets.all())


def has_store(settings: Settings) -> bool:
    """Tell whether a store was made before, where to open it would make one."""
    scheme, _, path = settings.store_url.partition(":///")
    return scheme != "sqlite" or Path(path).exists()


def _analyse_tables(parts: Parts, spark: SparkHost) -> list[Problem]:
    from tidegate.tables.views import analyse

    return analyse(spark, parts.tables, parts.topics)


def _misfitting_tables(parts: Parts, changes: Changes) -> list[Problem]:
    from tidegate.tables.lake_checks import resharding_problems

    return resharding_problems(parts.project, changes, parts.store)


KINDS: Mapping[Kind, KindParts] = {
    Kind.TABLE: KindParts(
        TABLES,
        TableDefinition.from_dict,
        _table_planner,
        _table_runner,
        _check_tables,
        _analyse_tables,
        _misfitting_tables,
    ),
}
"""The only registry of kinds: a new one is a package and an entry here."""


def read_project(folder: Path) -> Project:
    """Read a project with the flows of every kind; its problems come with it."""
    return load_project(folder, [one.reader for one in KINDS.values()])


def open_lake(settings: Settings, runtime: RealRuntime) -> Tables:
    """Give the tables of a lake, read by their logs."""
    from tidegate.spark.delta_log import is_s3, log_options
    from tidegate.spark.looks import Tables

    path, reached = settings.lake_path, settings.lake.s3
    options = log_options(reached.endpoint, reached.region) if is_s3(path) else {}
    return Tables(path, runtime.now, options)


@contextmanager
def open_parts(project: Project) -> Iterator[Parts]:
    """Open the store and the lake of a project."""
    from tidegate.store import open_store

    settings, runtime = project.settings, RealRuntime()
    store = open_store(settings.store_url, {kind: one.read for kind, one in KINDS.items()})
    try:
        yield Parts(
            project,
            store,
            open_lake(settings, runtime),
            FlockHolders(settings.scratch / "locks", runtime),
            runtime,
        )
    finally:
        store.close()
