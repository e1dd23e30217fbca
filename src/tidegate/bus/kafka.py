"""The bus on Kafka: an idempotent producer, and inboxes that read assigned partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from tidegate.bus.cluster import START_SECONDS, Cluster
from tidegate.bus.kafka_inbox import KafkaInbox, Reader
from tidegate.bus.topics import Topics
from tidegate.errors import Malformed
from tidegate.model.messages import Message, Topic, key_of, parse, render, topic_of
from tidegate.ports import Delivery, Parcel

POLL_SECONDS = 0.5
CLOSING_SECONDS = 5.0

_log = logging.getLogger(__name__)


class KafkaBus:
    """Implements `ports.Bus` over a cluster."""

    def __init__(self, servers: str, prefix: str, settings: Mapping[str, str]) -> None:
        self._cluster = Cluster(servers, prefix, settings)
        self._topics = Topics(self._cluster)
        self._existing = frozenset(self._topics.existing())
        """Nothing is sent to a topic that the manager has not made: a broker would make it itself,
        with other settings."""
        self._inboxes: list[KafkaInbox] = []
        self._fatal = threading.Event()
        self._producer = self._new_producer()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kafka-bus", daemon=True)
        self._thread.start()

    def create_topics(self) -> None:
        self._topics.create()
        self._existing = frozenset(map(self._cluster.name, Topic))

    def publish(self, messages: Sequence[Message]) -> None:
        lost = [why for message in messages if (why := self._send(message)) is not None]
        if lost:
            _log.warning("%d messages are not sent: %s", len(lost), lost[0])

    def enclose(self, _messages: Sequence[Message]) -> Sequence[Parcel]:
        return ()

    def announce(self, messages: Sequence[Message]) -> None:
        self.publish(messages)

    def manager_inbox(self) -> KafkaInbox:
        topics = [Topic.HEARTBEAT, Topic.PROGRESS]
        inbox = KafkaInbox(self._cluster, topics, Reader.MANAGER, lambda _delivery: True)
        self._inboxes.append(inbox)
        return inbox

    def worker_inbox(self, instances: Sequence[str]) -> KafkaInbox:
        mine = frozenset(instances)
        inbox = KafkaInbox(
            self._cluster, [Topic.CONTROL], Reader.WORKER, lambda delivery: _is_for(mine, delivery)
        )
        self._inboxes.append(inbox)
        inbox.wait_until_placed()
        return inbox

    def wake(self) -> None:
        for inbox in list(self._inboxes):
            inbox.wake()

    def trim(self, before: int) -> None:
        """Do nothing: the broker drops what is old."""

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.close()
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(CLOSING_SECONDS)
        if left:
            _log.warning("%d messages are not sent: the broker did not take them in time", left)

    def _send(self, message: Message) -> str | None:
        """Hand one message to the producer; tell what was in the way."""
        name = self._cluster.name(topic_of(message))
        if name not in self._existing:
            return f"there is no topic {name} yet; a manager makes it"
        try:
            self._producer.produce(
                name, render(message), key_of(message), partition=0, on_delivery=_complain
            )
        except (BufferError, KafkaException) as error:
            return str(error)
        return None

    def _serve(self) -> None:
        """Let the producer tell what became of messages, and look for topics that are missing."""
        while not self._stop.is_set():
            self._producer.poll(POLL_SECONDS)
            if len(self._existing) < len(Topic):
                self._look_for_topics()
            if self._fatal.is_set():
                self._fatal.clear()
                self._producer = self._new_producer()

    def _look_for_topics(self) -> None:
        names = {self._cluster.name(topic) for topic in Topic}
        try:
            found = self._producer.list_topics(timeout=START_SECONDS).topics
        except KafkaException as error:
            _log.warning("the topics cannot be looked for: %s", error.args[0].str())
            return
        self._existing |= names & found.keys()

    def _new_producer(self) -> Producer:
        return self._cluster.producer(self._heard)

    def _heard(self, error: KafkaError) -> None:
        _log.warning("%s", error.str())
        if error.fatal():
            # An idempotent producer that lost count sends nothing any more.
            self._fatal.set()


def _is_for(instances: frozenset[str], delivery: Delivery) -> bool:
    # By the body, not by the key: the keys of a foreign manager may mean something else.
    try:
        return key_of(parse(delivery.topic, delivery.body)) in instances
    except Malformed:
        # For nobody or for anybody: every reader is given it, and the store counts it once.
        return True


def _complain(error: KafkaError | None, _record: Record) -> None:
    if error is not None:
        _log.warning("a message is not sent: %s", error.str())
