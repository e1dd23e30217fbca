"""The composition root: the only module that picks back ends and puts the parts together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.holders import FlockHolders
from tidegate.model.lineage import Processor
from tidegate.project import Project
from tidegate.runtime import RealRuntime
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.engine.lake import DeltaLake
    from tidegate.engine.looks import Tables
    from tidegate.engine.session import SparkHost
    from tidegate.model.execution import Limits
    from tidegate.model.pace import Pace
    from tidegate.ports import Bus, Reporter, Store
    from tidegate.services.care import Care
    from tidegate.services.delegate import Delegate
    from tidegate.services.executor import Executor
    from tidegate.services.foreground import Foreground, Watcher
    from tidegate.services.lifecycle import Lifecycle
    from tidegate.services.lookout import Lookout
    from tidegate.services.manager import Manager
    from tidegate.services.rebuilder import Rebuilder
    from tidegate.services.shadows import Shadows
    from tidegate.services.worker import Worker


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
        return self.project.settings.control.pace

    def lookout(self) -> Lookout:
        """Make a look at everything, as of now, that needs no JVM."""
        from tidegate.services.lookout import Lookout

        definitions = self.project.definitions
        return Lookout(definitions, self.store, self.tables, self.holders, self.runtime)

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
    def spark(self) -> Iterator[SparkHost]:
        """Give a Spark that starts at its first use and ends with the block."""
        from tidegate.engine.session import SparkHost
        from tidegate.engine.storage import is_s3, spark_settings

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
        )
        try:
            yield host
        finally:
            host.stop()
            self.holders.release()

    def lake(self, spark: SparkHost) -> DeltaLake:
        from tidegate.engine.lake import DeltaLake

        return DeltaLake(self.tables, spark)

    def executor(self, spark: SparkHost, reporter: Reporter) -> Executor:
        """Put together what runs a block."""
        from tidegate.engine.aside import SetAside
        from tidegate.engine.load import Loader
        from tidegate.engine.publish import Publisher
        from tidegate.engine.reload import write_reload
        from tidegate.engine.step import write_step
        from tidegate.services.executor import Executor

        loader = Loader(
            spark,
            self.tables,
            SetAside(self.tables, self.store.failures, self.runtime),
            self.runtime,
            writes={Processor.STEP: write_step, Processor.RELOAD: write_reload},
        )
        runners = {Processor.STEP: loader, Processor.RELOAD: loader}
        return Executor(
            self.store,
            self.lake(spark),
            runners,
            Publisher(spark, self.tables, self.runtime),
            self.holders,
            self.runtime,
            reporter,
            self.pace.pause_after,
            spark.works,
        )

    def shadows(self, spark: SparkHost) -> Shadows:
        """Put together what keeps the tables that are built beside others."""
        from tidegate.services.shadows import Shadows

        return Shadows(self.store, self.lake(spark), self.holders, self.runtime)

    def foreground(self, spark: SparkHost, watcher: Watcher) -> Foreground:
        """Put together a run by hand."""
        from tidegate.services.foreground import Foreground
        from tidegate.services.reporter import Silence

        executor = self.executor(spark, Silence())
        return Foreground(
            self.lookout(),
            executor,
            self.store,
            self.runtime,
            watcher,
            self.care(spark, executor),
            self.shadows(spark),
        )

    def care(self, spark: SparkHost, executor: Executor) -> Care:
        """Put together what tidies tables."""
        from tidegate.engine.care import SparkCaretaker
        from tidegate.model.care import CareRules
        from tidegate.model.duration import parse_duration
        from tidegate.services.care import Care

        wanted = self.project.settings.lake
        rules = CareRules(wanted.compact_files, parse_duration(wanted.vacuum_after))
        caretaker = SparkCaretaker(spark, self.tables, rules, self.runtime)
        return Care(self.store, caretaker, executor, self.runtime)

    def rebuilder(self, spark: SparkHost, watcher: Watcher) -> Rebuilder:
        """Put together a rebuild by hand."""
        from tidegate.services.rebuilder import Rebuilder
        from tidegate.services.reporter import Silence

        return Rebuilder(
            self.project.definitions,
            self.store,
            self.lake(spark),
            self.shadows(spark),
            self.executor(spark, Silence()),
            self.lookout,
            self.runtime,
            watcher,
        )

    def is_managed(self) -> bool:
        """Tell whether a manager leads now, and has somebody to build tables."""
        from tidegate.model.instance import TABLE

        leads = self.store.leadership.read().established(self.pace.lease)
        return leads and any(
            one.works and TABLE in one.kinds and self.holders.lives(one.process)
            for one in self.store.instances.all()
        )

    def delegate(self, watcher: Watcher, user: str) -> Delegate:
        """Put together a run by hand that the manager does."""
        from tidegate.services.delegate import Delegate

        return Delegate(self.lookout(), self.store, self.runtime, watcher, user)

    def require_own_lake(self) -> None:
        """Refuse to join workers that could spoil a table together with this one."""
        from tidegate.errors import WrongUse
        from tidegate.model.instance import Instance, clash

        me = self.holders.me
        lake = self.project.settings.lake_path
        mine = Instance("", host=me.partition(":")[0], process=me)
        problem = clash(lake, mine, self.store.instances.all())
        if problem:
            raise WrongUse(problem)

    def manager(self, bus: Bus, life: Lifecycle) -> Manager:
        """Put together a candidate for leadership."""
        from tidegate.services.manager import Manager

        return Manager(self.store, bus, self.tables, self.holders, self.runtime, self.pace, life)

    def worker(self, spark: SparkHost, bus: Bus, life: Lifecycle, hiring: Hiring) -> Worker:
        """Put together a worker process."""
        from tidegate.services.reporter import BusReporter
        from tidegate.services.worker import Identity, Worker

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
            tidy=self.care(spark, executor).after_block,
            foreign=self._limits if hiring.foreign_manager else None,
        )

    def _limits(self, topic: str) -> Limits | None:
        """Plan one topic for a manager that leaves that to us."""
        verdict = self.lookout().plan(eager=True).verdicts.get(topic)
        return verdict.limits if verdict else None


@dataclass(frozen=True)
class Hiring:
    """How a worker process is to be."""

    name: str = ""
    slots: int = 1
    tags: tuple[str, ...] = ()
    foreign_manager: bool = False


def open_lake(settings: Settings, runtime: RealRuntime) -> Tables:
    """Give the tables of a lake, read by their logs."""
    from tidegate.engine.looks import Tables
    from tidegate.engine.storage import is_s3, log_options

    path, reached = settings.lake_path, settings.lake.s3
    options = log_options(reached.endpoint, reached.region) if is_s3(path) else {}
    return Tables(path, runtime.now, options)


@contextmanager
def open_parts(project: Project) -> Iterator[Parts]:
    """Open the store and the lake of a project."""
    from tidegate.store import open_store

    settings, runtime = project.settings, RealRuntime()
    store = open_store(settings.store_url)
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
