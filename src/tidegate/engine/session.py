"""One Spark for the process, and a fresh session of it for each execution."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.engine.failures import sentence
from tidegate.engine.jars import spark_jars
from tidegate.engine.java import find_java
from tidegate.errors import SetupError, WrongUse

_SESSION = {
    # Delta's own parser does not know parameter markers; substituting constants gets past it.
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
}
"""Settings that a new session does not inherit."""
_LAST_SECONDS = 20.0
"""How long a JVM that was told to end may take."""


def _is_news(record: logging.LogRecord) -> bool:
    """Hold back py4j's stack trace of a ctrl-C, which it gives past its own logger."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


class SparkHost:
    """Starts Spark when it is first needed, and ends it with the process."""

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str],
        scratch: Path,
        pass_fds: Sequence[int] = (),
        *,
        own_catalog: bool = False,
        s3: bool = False,
    ) -> None:
        self._master = master
        self._conf = dict(conf)
        self._scratch = scratch
        self._pass_fds = tuple(pass_fds)
        self._own_catalog = own_catalog
        self._s3 = s3
        self._root: SparkSession | None = None
        self._remotes: WeakSet[SparkSession] = WeakSet()
        self._sessions: dict[str, list[SparkSession]] = {}
        """Of the executions that go on."""
        self._process: Popen[bytes] | None = None
        self._stopped = False
        """Its context was seen to have stopped by itself: a thread of Spark's ran out of memory."""
        self._lock = threading.Lock()
        self.catalogued: set[str] = set()
        """Tables that were put into the catalog of this Spark."""

    @property
    def connect(self) -> bool:
        return self._master.startswith("sc://")

    def fresh(self, execution: str | None = None) -> SparkSession:
        """Give a session that shares the caches of the others, but no function, view or setting.

        What goes on in the sessions of an execution can be interrupted.
        """
        with self._lock:
            if self._root is None:
                self._root = self._start()
        session = self._remote() if self.connect else self._root.newSession()
        for name, value in _SESSION.items():
            session.conf.set(name, value)
        if self.connect:
            # The rest is settled by who started the server.
            for name, value in self._conf.items():
                if session.conf.isModifiable(name):
                    session.conf.set(name, value)
        if execution is not None:
            with self._lock:
                self._sessions.setdefault(execution, []).append(session)
        return session

    def interrupt(self, execution: str) -> None:
        """Let what an execution has Spark do fail."""
        with self._lock:
            sessions = list(self._sessions.get(execution, ()))
        for session in sessions:
            # Not by a tag: Spark keeps those a thread, and this is another one.
            session.interruptAll()

    def forget(self, execution: str) -> None:
        """Let go of the sessions of an execution."""
        with self._lock:
            self._sessions.pop(execution, None)

    def lives(self) -> bool:
        """Tell whether the Spark that was started is still there; one that was not yet, counts.

        At once, also while the JVM hangs: that its context has stopped is known once `works` asked.
        """
        return not self._stopped and (self._process is None or self._process.poll() is None)

    def works(self) -> bool:
        """Ask Spark whether it can still be used: its context may have stopped in a living JVM."""
        if self.lives() and self._root is not None and not self.connect:
            try:
                self._stopped = self._root.sparkContext._jsc.sc().isStopped()
            except (Py4JError, OSError):
                # Whoever asks has just seen it fail, and it does not answer.
                self._stopped = True
        return self.lives()

    def stop(self) -> None:
        """End Spark; safe to call twice."""
        with self._lock:
            root, self._root = self._root, None
        # One that is left to the end of the process waits there for threads that are gone.
        for remote in list(self._remotes):
            remote.stop()
        if root is not None and not self.connect:
            root.stop()
        if self._process is not None:
            self._end_jvm(self._process)

    def _end_jvm(self, process: Popen[bytes]) -> None:
        """See the JVM off: whoever waits for this process must not find its child alive."""
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        if gateway is not None:
            gateway.shutdown()
        if process.stdin is not None:
            # It ends when this does, as it would after a crash.
            process.stdin.close()
        try:
            process.wait(_LAST_SECONDS)
        except TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> SparkSession:
        # pyspark prints a stack trace as JSON for each SQL error; users get a sentence instead.
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        logging.getLogger().addFilter(_is_news)
        return self._remote() if self.connect else self._classic()

    def _remote(self) -> SparkSession:
        session = SparkSession.builder.remote(self._master).create()
        self._remotes.add(session)
        return session

    def _classic(self) -> SparkSession:
        os.environ["JAVA_HOME"] = str(find_java().resolve().parent.parent)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if self._master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        self._scratch.mkdir(parents=True, exist_ok=True)
        interrupted = signal.getsignal(signal.SIGINT)
        conf = SparkConf(loadDefaults=False).setAll(list(self._settings().items()))
        with (self._scratch / "spark.log").open("ab") as log:
            popen = {"pass_fds": self._pass_fds, "stdout": log, "stderr": log}
            try:
                # The JVM inherits this process's lock, and holds it as long as it can write.
                gateway = launch_gateway(conf, popen_kwargs=popen)  # type: ignore[no-untyped-call]
                self._process = gateway.proc
                context = SparkContext(conf=conf, gateway=gateway)
            except Exception as error:
                raise SetupError(
                    f"Spark did not start on {self._master}: {sentence(error)};"
                    f" its own log is {self._scratch / 'spark.log'}"
                ) from error
        if threading.current_thread() is threading.main_thread():
            # pyspark's own handler talks to the JVM in the middle of another call to it.
            signal.signal(signal.SIGINT, interrupted)
        return SparkSession(context)

    def _settings(self) -> dict[str, str]:
        class_path = os.pathsep.join(str(jar) for jar in spark_jars(s3=self._s3))
        cores = os.cpu_count() or 2
        settings = {
            "spark.master": self._master,
            "spark.app.name": "tidegate",
            "spark.driver.extraClassPath": class_path,
            "spark.executor.extraClassPath": class_path,
            "spark.driver.memory": "2g",
            "spark.log.level": "ERROR",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
            # With the default of 50 the same small append takes seconds.
            "spark.databricks.delta.snapshotPartitions": "1",
            # Else every column that we name costs milliseconds, to say where in our code it was.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if not self._own_catalog:
            settings["spark.sql.catalogImplementation"] = "in-memory"
        if self._master.startswith("local"):
            settings["spark.sql.shuffle.partitions"] = str(2 * cores)
        for name, value in self._conf.items():
            if name in ("spark.master", "spark.sql.extensions"):
                raise WrongUse(f"tidegate.toml: [spark] conf may not set {name}")
            settings[name] = value
        return settings
