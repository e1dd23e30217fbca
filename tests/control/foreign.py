"""A worker and a manager that know nothing but the protocol: JSON over a broker, nothing of ours.

Run as `python foreign.py SERVERS worker finish|reject|die` it prints each execution id that it was
assigned. It stands for what other teams may have written in any language.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = ("heartbeat", "control", "progress")
PHASE = {"phase": "data-load", "dataStreamName": "things"}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Peer:
    """One end of the protocol."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        self._servers = servers

    def send(self, topic: str, type: str, payload: dict[str, Any], **info: str) -> None:
        message = {"info": {"type": type, "timestamp": now(), **info}, "payload": payload}
        self._producer.produce(topic, json.dumps(message).encode())
        self._producer.flush(10)

    def listen(self, topic: str) -> Consumer:
        """Read a topic from its end on."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": str(uuid.uuid4()),
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, 0, end_of(consumer, topic))])
        return consumer


def end_of(consumer: Consumer, topic: str) -> int:
    """Give the offset of what comes next; a topic that was just made may take a moment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class ForeignWorker(Peer):
    """Heartbeats, and does with an assigned execution what it was made for."""

    def __init__(self, servers: str, habit: str) -> None:
        super().__init__(servers)
        self._habit = habit
        self._id = str(uuid.uuid4())
        self._control = self.listen("ems.control")
        self._state = "idle"

    def serve(self) -> None:
        beaten = 0.0
        while True:
            if time.monotonic() - beaten > 0.5:
                self.send("ems.heartbeat", "heartbeat", {"id": self._id, "state": self._state})
                beaten = time.monotonic()
            message = self._control.poll(0.2)
            if message is None or message.error():
                continue
            command = json.loads(message.value() or b"")
            if command["info"]["assignee"] == self._id:
                self._obey(command["payload"]["etlExecutionId"], command["payload"])

    def _obey(self, execution: str, payload: dict[str, Any]) -> None:
        print(f"{self._id} {execution} {json.dumps(payload['configuration'])}", flush=True)
        mine = {"etlExecutionId": execution, "assignee": self._id}
        if self._habit == "reject":
            self.send("ems.progress", "etl-execution-rejected", mine)
            return
        self._state = "busy"
        self.send("ems.progress", "etl-execution-accepted", mine)
        self.send("ems.progress", "etl-execution-started", mine)
        stream = {"etlExecutionId": execution, "instanceId": self._id, **PHASE}
        self.send("ems.progress", "etl-data-stream-started", stream)
        if self._habit == "die":
            sys.exit(9)
        totals = {"totalInMessages": 5, "totalOutMessages": 4, "totalFailedMessages": 1}
        self.send("ems.progress", "etl-data-stream-stats", {**stream, **totals})
        self.send("ems.progress", "etl-data-stream-finished", stream)
        self.send("ems.progress", "etl-execution-finished", mine)
        self._state = "idle"


class ForeignManager(Peer):
    """Assigns what it likes to whoever it hears of, and listens to the progress."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        # The topics are the manager's to make.
        settings = {"retention.ms": "180000"}
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        made = admin.create_topics(
            [NewTopic(f"ems.{name}", 1, 1, config=settings) for name in TOPICS]
        )
        for topic in made.values():
            try:
                topic.result(20)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._heartbeats = self.listen("ems.heartbeat")
        self._progress = self.listen("ems.progress")

    def first_idle(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self._heartbeats.poll(1)
            if message is not None and not message.error():
                heard = json.loads(message.value() or b"")
                if heard["payload"]["state"] == "idle":
                    return str(heard["payload"]["id"])
        raise TimeoutError("no idle instance was heard")

    def assign(self, instance: str, configuration: dict[str, Any]) -> str:
        execution = str(uuid.uuid4())
        payload = {"etlExecutionId": execution, "configuration": configuration}
        self.send("ems.control", "etl-execution-assign", payload, assignee=instance)
        return execution

    def story_of(self, execution: str, timeout: float) -> list[dict[str, Any]]:
        """Give what was said of an execution, up to its end."""
        told: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self._progress.poll(1)
            if message is None or message.error():
                continue
            heard = json.loads(message.value() or b"")
            if heard["payload"]["etlExecutionId"] != execution:
                continue
            told.append(heard)
            if heard["info"]["type"].endswith(("execution-finished", "-failed", "-rejected")):
                return told
        raise TimeoutError(f"no end of {execution} was heard; {told}")


if __name__ == "__main__":
    ForeignWorker(sys.argv[1], sys.argv[3]).serve()
