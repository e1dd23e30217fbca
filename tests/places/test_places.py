"""The same project, unchanged, on a standalone cluster and over Spark Connect."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.fault.harness import Battered
from tests.projects import SPARK_CONF
from tidegate.spark.jars import spark_jars
from tidegate.spark.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    **SPARK_CONF,
}
PATIENCE_SECONDS = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(folder: Path, name: str, ready: str, *command: str) -> Iterator[None]:
    """Run a part of Spark beside the test, from the line that says it is ready on."""
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().resolve().parent.parent),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / name),
    }
    with log.open("wb") as out:
        part = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not re.search(ready, log.read_text(errors="replace")):
            assert part.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(part.pid, signal.SIGKILL)
        part.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers."""
    port, java = free_port(), str(SPARK_HOME / "bin" / "spark-class")
    url = f"spark://127.0.0.1:{port}"
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    options = ("--host", "127.0.0.1", "--webui-port", "0")
    with (
        started(
            tmp_path, "master", "New state: ALIVE", java, master, *options, "--port", str(port)
        ),
        started(tmp_path, "w1", "registered with", java, worker, *options, "-c", "1", url),
        started(tmp_path, "w2", "registered with", java, worker, *options, "-c", "1", url),
    ):
        yield url


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """A Connect server with Delta in it, as its owner would set it up."""
    port = free_port()
    jars = os.pathsep.join(map(str, spark_jars()))
    conf = {**DELTA, "spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false"}
    options = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
    with started(
        tmp_path,
        "connect",
        "Spark Connect server started",
        str(SPARK_HOME / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]", "--driver-class-path", jars, *options),
        "spark-internal",
    ):
        yield f"sc://127.0.0.1:{port}"


def build(folder: Path, master: str) -> None:
    (folder / "tidegate.toml").write_text(f'[spark]\nmaster = "{master}"\n')
    project = Battered(folder, blocks=1)
    project.land()
    project.finish()
    project.check()


@pytest.mark.long
def test_a_standalone_cluster(tmp_path: Path, cluster: str) -> None:
    build(tmp_path, cluster)


def test_a_connect_server(tmp_path: Path, connect: str) -> None:
    build(tmp_path, connect)
