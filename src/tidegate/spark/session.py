"""One Spark a process, a fresh session for each execution, and Spark's errors as sentences."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any
from weakref import WeakSet

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PythonException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.errors import FlowFailed, LakeAway, LakeError, Outage, SetupError, WrongUse
from tidegate.spark.archive import archive_for
from tidegate.spark.jars import S3, jars_of, spark_jars
from tidegate.spark.java import find_java

_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*(.+)", re.DOTALL)
_CLASS = re.compile(r"^(?:\w+\.)+[\w$]+: (?=.)")
_TAILS = re.compile(r"\s*SQLSTATE:.*|\s*== SQL.*|\n\s*at .*|;\n.*", re.DOTALL)
_ADVICE = re.compile(r"\s*(?:Use `try_|If necessary set|To tolerate|To return NULL).*", re.DOTALL)
_DATA_ERROR = re.compile(
    # SQL's classes for a data exception, for a function of the user's that failed, and raise_error.
    r"SQLSTATE: (?:22|38|39|P0)\w{3}|PythonException|ArithmeticException|NumberFormatException"
)
_OUR_MARK = "TIDEGATE_"
_DULL = ("TASK_WRITE_FAILED", "INTERNAL_ERROR", "FAILED_EXECUTE_UDF")
"""Conditions that only say that something below them failed."""


def sentence(error: BaseException) -> str:
    """Find the cause in an error of Spark's, and leave the rest of the stack away."""
    text = str(error)
    told = [match for match in (_told(part) for part in (text, *_causes(text))) if match]
    sharp = [what for condition, what in told if condition not in _DULL]
    if sharp:
        return sharp[-1]
    causes = _CAUSE.findall(text)
    if causes:
        return _tidy(causes[-1])
    lines = [line for line in text.splitlines() if line.strip(": ")]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [_CLASS.sub("", lines[1].lstrip(": "))]
    return _tidy(lines[0].lstrip(": ")) if lines else type(error).__name__


def blames_a_row(error: BaseException) -> bool:
    """Tell whether Spark failed over what a row holds, and not over the lake or itself."""
    text = str(error)
    if _OUR_MARK in text or is_outage(error):
        return False
    return _DATA_ERROR.search(text) is not None


_OUTAGES = (
    "java.io.IOException",
    "java.net.UnknownHostException",
    "java.lang.OutOfMemoryError",
    "org.apache.hadoop.fs.FSError",
    "org.apache.spark.memory.SparkOutOfMemoryError",
    "org.apache.spark.rpc.RpcTimeoutException",
)
"""Of these, or of what extends them, is a cause that lies in what Spark stands on."""
_CLIENTS = ("software.amazon.awssdk.", "com.google.cloud.", "com.azure.", "io.grpc.")
"""What speaks to storage, and fails only where that does not answer or refuses."""
_IN_A_FILE = (
    "java.io.CharConversionException",
    "java.io.EOFException",
    "java.io.FileNotFoundException",
    "java.nio.charset.CharacterCodingException",
    "java.nio.file.NoSuchFileException",
    "java.util.zip.ZipException",
    "com.fasterxml.jackson.core.JacksonException",
    "org.apache.hadoop.fs.ChecksumException",
)
"""An IOException over what a file holds, or over one that is gone: storage does its work."""
_REFUSED = re.compile(
    r"\((?:Permission denied|Read-only file system|No space left on device|Not a directory|"
    r"Input/output error|Stale file handle|Too many open files|Disk quota exceeded)\)$"
)
"""How a FileNotFoundException ends that is about no file."""
_EXECUTOR_LOST = re.compile(r"\(TID \d+\) \([^()]*\): ExecutorLostFailure ")
_REMOTE_AWAY = re.compile(r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED)\b")
_PYTHON_AWAY = re.compile(
    r"^(?:MemoryError\b|OSError: \[Errno (?:5|12|23|24|28|30|122)\])", re.MULTILINE
)
"""How the Python of a function of the user's ends that lacks memory, or room on a disk."""
_RAISED = re.compile(r"^(?:Caused by: )?((?:[a-z]\w*\.)+[A-Z][\w$]*)(?:: (.*))?$", re.MULTILINE)
_MOST_CAUSES = 30


def is_outage(error: BaseException) -> bool:
    """Tell whether what Spark, or Python, stands on has failed: storage, network, memory, a host.

    By the classes of the causes, never by a text in which the value of a row may stand.
    """
    if isinstance(error, Outage):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError)
    if isinstance(error, PythonException):
        return _PYTHON_AWAY.search(str(error)) is not None
    thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        if thrown is not None:
            return any(_is_outage(cause) for cause in _causes_of(thrown))
    except (Py4JError, OSError):
        # The JVM that threw it does not answer any more.
        return True
    return _is_remote_outage(error)


def _causes_of(thrown: Any) -> Iterator[Any]:
    for _ in range(_MOST_CAUSES):
        if thrown is None:
            return
        yield thrown
        thrown = thrown.getCause()


def _is_outage(cause: Any) -> bool:
    name: str = cause.getClass().getName()
    if name.startswith(_CLIENTS):
        return True
    message: str = cause.getMessage() or ""
    if name == "org.apache.spark.SparkException":
        return _EXECUTOR_LOST.search(message) is not None
    return _is_of(cause, _OUTAGES) and (
        not _is_of(cause, _IN_A_FILE) or _REFUSED.search(message) is not None
    )


def _is_of(thrown: Any, classes: Sequence[str]) -> bool:
    gateway = SparkContext._gateway
    return any(_is_known(gateway, thrown, name) for name in classes)


def _is_known(gateway: Any, thrown: Any, name: str) -> bool:
    try:
        return bool(is_instance_of(gateway, thrown, name))
    except Py4JError:
        # A class that this JVM has not.
        return False


def _is_remote_outage(error: BaseException) -> bool:
    """Judge an error of Spark Connect, which comes as a text with the names of Java's classes."""
    if not type(error).__module__.startswith(("pyspark.errors.exceptions.connect", "grpc")):
        return False
    text = str(error)
    if _REMOTE_AWAY.search(text):
        return True
    _, _, stack = text.partition("JVM stacktrace:")
    for name, message in _RAISED.findall(stack):
        listed = name.startswith((*_CLIENTS, "java.net.")) or name in _OUTAGES
        if listed or (name in _IN_A_FILE and _REFUSED.search(message)):
            return True
    return False


def failed(error: BaseException, why: str) -> Outage | FlowFailed:
    """Say why an execution failed; over its flow, or over what it stands on."""
    return Outage(why) if is_outage(error) else FlowFailed(why)


def lake_error(error: BaseException, why: str) -> LakeError:
    """Say the same of a table of the lake."""
    return LakeAway(why) if is_outage(error) else LakeError(why)


def _causes(text: str) -> list[str]:
    return [text[match.start(1) :] for match in _CAUSE.finditer(text)]


def _told(text: str) -> tuple[str, str] | None:
    found = _CONDITION.search(text)
    if found is None:
        return None
    return found[1], f"{_tidy(_ADVICE.sub('', _TAILS.sub('', found[2])))} [{found[1]}]"


def _tidy(text: str) -> str:
    return " ".join(text.split())[:600]


_SESSION = {
    # Delta's own parser does not know parameter markers; substituting constants gets past it.
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
}
"""Settings that a new session does not inherit."""
LAST_SECONDS = 20.0
"""How long a JVM that was told to end may take."""
_DEFAULT_OPTIONS, _DIST = "spark.driver.defaultJavaOptions", "SPARK_DIST_CLASSPATH"
_NAMES_ARCHIVE = re.compile(r"-XX:(?:SharedArchiveFile|ArchiveClassesAtExit|AOT\w+)=|-Xshare:")


def _is_news(record: logging.LogRecord) -> bool:
    """Hold back py4j's stack trace of a ctrl-C, which it gives past its own logger."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def java_options(archive: Path | None, own: str, *, quick: bool) -> str:
    """Give the driver's JVM what makes it start soon; `own` are the user's options."""
    options: list[str] = []
    if archive is not None and not _NAMES_ARCHIVE.search(own):
        # Where the archive does not fit, the JVM goes on without.
        options += ["-Xshare:auto", f'"-XX:SharedArchiveFile={archive}"']
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)


class SparkHost:
    """Starts Spark when it is first needed, and ends it with the process.

    One that is `quick` compiles little: for few rows and looks, at half the time and less. Over
    millions of rows it takes twice as long.
    """

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str],
        scratch: Path,
        pass_fds: Sequence[int] = (),
        *,
        own_catalog: bool = False,
        s3: bool = False,
        quick: bool = False,
        last_seconds: float = LAST_SECONDS,
    ) -> None:
        self._master = master
        self._conf = dict(conf)
        self._scratch = scratch
        self._pass_fds = tuple(pass_fds)
        self._own_catalog = own_catalog
        self._s3 = s3
        self._quick = quick
        self._last_seconds = last_seconds
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
        session = self._connected() if self.connect else self._set(self._root.newSession())
        if execution is not None:
            with self._lock:
                self._sessions.setdefault(execution, []).append(session)
        return session

    def _set(self, session: SparkSession) -> SparkSession:
        for name, value in _SESSION.items():
            session.conf.set(name, value)
        return session

    def _connected(self) -> SparkSession:
        """Give a session of a server; what it may not set, who started that has settled."""
        try:
            session = self._set(self._remote())
            for name, value in self._conf.items():
                if session.conf.isModifiable(name):
                    session.conf.set(name, value)
        except Exception as error:
            if not is_outage(error):
                raise
            raise Outage(f"Spark at {self._master} is away: {sentence(error)}") from error
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
            process.wait(self._last_seconds)
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
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if self._master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        self._scratch.mkdir(parents=True, exist_ok=True)
        interrupted = signal.getsignal(signal.SIGINT)
        conf = SparkConf(loadDefaults=False).setAll(list(self._settings(java).items()))
        with (self._scratch / "spark.log").open("ab") as log, _last_on_class_path(self._last()):
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

    def _last(self) -> list[Path]:
        """Give what the archive was made without: it must come after all that it was made with."""
        return jars_of(S3) if self._s3 else []

    def _settings(self, java: Path) -> dict[str, str]:
        first, every = (
            os.pathsep.join(str(jar) for jar in jars)
            for jars in (spark_jars(), spark_jars(s3=self._s3))
        )
        cores = os.cpu_count() or 2
        settings = {
            "spark.master": self._master,
            "spark.app.name": "tidegate",
            "spark.driver.extraClassPath": first,
            "spark.executor.extraClassPath": every,
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
        self._add_java_options(settings, archive_for(java))
        return settings

    def _add_java_options(self, settings: dict[str, str], archive: Path | None) -> None:
        """Add ours as the defaults, which Spark puts before a user's own: the last one counts."""
        defaults = settings.get(_DEFAULT_OPTIONS, "")
        own = f"{defaults} {settings.get('spark.driver.extraJavaOptions', '')}"
        ours = java_options(archive, own, quick=self._quick)
        if ours:
            settings[_DEFAULT_OPTIONS] = f"{ours} {defaults}".strip()


@contextmanager
def _last_on_class_path(jars: Sequence[Path]) -> Iterator[None]:
    """Put jars behind all others for a JVM that is started meanwhile."""
    before = os.environ.get(_DIST)
    if jars:
        named = [before] if before else []
        os.environ[_DIST] = os.pathsep.join([*named, *map(str, jars)])
    try:
        yield
    finally:
        if before is not None:
            os.environ[_DIST] = before
        elif jars:
            del os.environ[_DIST]


def write_and_read(spark: SparkHost, lake: str) -> str:
    """Write a row to the lake, read it back, and say with what."""
    session = spark.fresh()
    path = f"{lake}/.tidegate-probe-{uuid.uuid4()}"
    try:
        session.range(1).write.format("delta").save(path)
        rows = session.read.format("delta").load(path).count()
    except Exception as error:
        message = f"Spark cannot write a Delta table below {lake}: {sentence(error)}"
        raise LakeError(message) from error
    finally:
        if "://" not in path:
            shutil.rmtree(path, ignore_errors=True)
    if rows != 1:
        raise LakeError(f"Spark wrote one row below {lake} and read {rows}")
    return f"Spark {session.version} wrote and read a Delta table"
