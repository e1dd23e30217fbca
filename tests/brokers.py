"""A real Kafka broker for tests: broker and controller in one small process, on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.spark.jars import jars_of
from tidegate.spark.java import find_java

PATIENCE_SECONDS = 120
USER, PASSWORD = "ann", "right"
"""Who may log in at the listener that asks for it."""

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_CLUSTER_ID = "dGlkZWdhdGUtdGVzdHMtMQ"
# The broker dies with the process that started it, however that ends: its standard input closes.
_WATCHED = '"$@" & broker=$!; cat > /dev/null; kill -9 $broker'
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login} required user_{user}="{password}";
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
log.cleaner.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Broker:
    """One broker; its data outlives a restart."""

    folder: Path
    plain: int = field(default_factory=free_port)
    sasl: int = field(default_factory=free_port)
    controller: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.plain}"

    @property
    def sasl_servers(self) -> str:
        return f"127.0.0.1:{self.sasl}"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start it, formatted first if it is new, and wait until it serves."""
        if not (self.folder / "server.properties").exists():
            self._format()
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", _WATCHED, "sh", *self._java("kafka.Kafka")],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            said = self.log.read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it; safe to call twice."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _format(self) -> None:
        (self.folder / "server.properties").write_text(
            _PROPERTIES.format(
                folder=self.folder,
                plain=self.plain,
                sasl=self.sasl,
                controller=self.controller,
                login=_LOGIN,
                user=USER,
                password=PASSWORD,
            )
        )
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c"),
            check=True,
            capture_output=True,
        )

    def _java(self, main: str, *arguments: str) -> list[str]:
        class_path = os.pathsep.join(map(str, jars_of("kafka")))
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        properties = str(self.folder / "server.properties")
        return [str(find_java()), *options, "-cp", class_path, main, *arguments, properties]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.plain), timeout=1):
                return True
        except OSError:
            return False
