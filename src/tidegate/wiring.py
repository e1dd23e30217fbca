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
    from tidegate.engine.looks import Tables
    from tidegate.engine.session import SparkHost
    from tidegate.ports import Store
    from tidegate.services.executor import Executor
    from tidegate.services.foreground import Foreground, Watcher
    from tidegate.services.lookout import Lookout


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

    def executor(self, spark: SparkHost) -> Executor:
        """Put together what runs a block."""
        from tidegate.engine.aside import SetAside
        from tidegate.engine.lake import DeltaLake
        from tidegate.engine.load import Loader
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
        lake = DeltaLake(self.tables, spark)
        return Executor(self.store, lake, runners, self.holders, self.runtime)

    def foreground(self, spark: SparkHost, watcher: Watcher) -> Foreground:
        """Put together a run by hand."""
        from tidegate.services.foreground import Foreground

        executor = self.executor(spark)
        return Foreground(self.lookout(), executor, self.store, self.runtime, watcher)


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
