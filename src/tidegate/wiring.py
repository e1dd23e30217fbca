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

if TYPE_CHECKING:
    from tidegate.engine.lake import DeltaLake
    from tidegate.engine.looks import Tables
    from tidegate.engine.session import SparkHost
    from tidegate.ports import Store
    from tidegate.services.care import Care
    from tidegate.services.executor import Executor
    from tidegate.services.foreground import Foreground, Watcher
    from tidegate.services.lookout import Lookout
    from tidegate.services.rebuilder import Rebuilder
    from tidegate.services.shadows import Shadows


@dataclass
class Parts:
    """What the commands work with; Spark comes in only where it is asked for."""

    project: Project
    store: Store
    tables: Tables
    holders: FlockHolders
    runtime: RealRuntime

    def lookout(self) -> Lookout:
        """Make a look at everything, as of now, that needs no JVM."""
        from tidegate.services.lookout import Lookout

        definitions = self.project.definitions
        return Lookout(definitions, self.store, self.tables, self.holders, self.runtime)

    @contextmanager
    def spark(self) -> Iterator[SparkHost]:
        """Give a Spark that starts at its first use and ends with the block."""
        from tidegate.engine.session import SparkHost

        settings = self.project.settings
        host = SparkHost(
            settings.spark.master,
            settings.spark.conf,
            settings.scratch,
            pass_fds=(self.holders.hold(),),
            own_catalog=settings.lake.catalog == "spark",
        )
        try:
            yield host
        finally:
            host.stop()
            self.holders.release()

    def lake(self, spark: SparkHost) -> DeltaLake:
        from tidegate.engine.lake import DeltaLake

        return DeltaLake(self.tables, spark)

    def executor(self, spark: SparkHost) -> Executor:
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
        publisher = Publisher(spark, self.tables, self.runtime)
        return Executor(
            self.store, self.lake(spark), runners, publisher, self.holders, self.runtime
        )

    def shadows(self, spark: SparkHost) -> Shadows:
        """Put together what keeps the tables that are built beside others."""
        from tidegate.services.shadows import Shadows

        return Shadows(self.store, self.lake(spark), self.holders, self.runtime)

    def foreground(self, spark: SparkHost, watcher: Watcher) -> Foreground:
        """Put together a run by hand."""
        from tidegate.services.foreground import Foreground

        executor = self.executor(spark)
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

        return Rebuilder(
            self.project.definitions,
            self.store,
            self.lake(spark),
            self.shadows(spark),
            self.executor(spark),
            self.lookout,
            self.runtime,
            watcher,
        )


@contextmanager
def open_parts(project: Project) -> Iterator[Parts]:
    """Open the store and the lake of a project."""
    from tidegate.engine.looks import Tables
    from tidegate.store import open_store

    settings, runtime = project.settings, RealRuntime()
    store = open_store(settings.store_url)
    try:
        yield Parts(
            project,
            store,
            Tables(settings.lake_path, runtime.now),
            FlockHolders(settings.scratch / "locks", runtime),
            runtime,
        )
    finally:
        store.close()
