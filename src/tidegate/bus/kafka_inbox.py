"""Reading topics of Kafka: a thread takes what comes, so that nothing slow sits in its loop."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from tidegate.bus.cluster import START_SECONDS, Cluster
from tidegate.model.messages import Topic
from tidegate.ports import Delivery

POLL_SECONDS = 0.25
"""How long the end of an inbox can go unnoticed by its thread."""
AGAIN_SECONDS = 1.0
TAKEN_AT_ONCE = 1000
MOST_WAITING = 10_000
CLOSING_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Reader(Enum):
    """Who reads, which tells where it begins."""

    MANAGER = "manager"  # behind what managers have done, or at the beginning of what is kept
    WORKER = "worker"  # at what comes from now on; it commits nothing


class KafkaInbox:
    """Implements `ports.Inbox`. Partitions are assigned, not subscribed to: a reader that stands
    still must not keep the next one from reading.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[Topic],
        reader: Reader,
        wanted: Callable[[Delivery], bool],
    ) -> None:
        self._topics = {cluster.name(topic): topic for topic in topics}
        self._reader, self._wanted = reader, wanted
        self._consumer: Consumer = cluster.consumer(f"tidegate-{reader.value}")
        self._changed = threading.Condition()
        self._waiting: deque[Delivery] = deque()
        self._woken = False
        self._undone: dict[Topic, dict[int, None]] = {topic: {} for topic in topics}
        """Offsets that were given out, in order."""
        self._reached: dict[Topic, int] = {}
        self._to_commit: dict[Topic, int] = {}
        self._stop = threading.Event()
        self._placed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kafka-inbox", daemon=True)
        self._thread.start()

    def wait_until_placed(self) -> None:
        """Wait until it is fixed where to read from: nothing sent after that is missed."""
        self._placed.wait(START_SECONDS)

    def receive(self, timeout: float) -> Sequence[Delivery]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._woken, timeout)
            self._woken = False
            count = min(len(self._waiting), TAKEN_AT_ONCE)
            taken = [self._waiting.popleft() for _ in range(count)]
            self._changed.notify_all()
        for delivery in taken:
            self._undone[delivery.topic][int(delivery.where)] = None
            self._reached[delivery.topic] = int(delivery.where) + 1
        return taken

    def done(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._undone[delivery.topic].pop(int(delivery.where), None)
        with self._changed:
            for topic in {delivery.topic for delivery in deliveries}:
                # Up to the first that is not done: those behind it may come twice, none is lost.
                self._to_commit[topic] = next(iter(self._undone[topic]), self._reached[topic])

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let go when what is done is committed; safe to call twice."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(CLOSING_SECONDS)

    def _serve(self) -> None:
        # All calls of the consumer are made here: it does not take them from two threads at once.
        try:
            if self._place():
                while not self._stop.is_set():
                    self._take()
                    self._commit(wait=False)
                self._commit(wait=True)
        finally:
            self._consumer.close()

    def _commit(self, *, wait: bool) -> None:
        with self._changed:
            done, self._to_commit = self._to_commit, {}
        if not done or self._reader is not Reader.MANAGER:
            return
        names = {topic: name for name, topic in self._topics.items()}
        places = [TopicPartition(names[topic], 0, offset) for topic, offset in done.items()]
        try:
            if wait:
                self._consumer.commit(offsets=places, asynchronous=False)
            else:
                self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            # They come again to the next reader, which knows messages that come twice.
            _log.warning("what is done could not be committed: %s", error.args[0].str())

    def _place(self) -> bool:
        """Find where to begin, however long the cluster is away; tell whether it was found."""
        missing = False
        while not self._stop.is_set():
            try:
                existing = self._consumer.list_topics(timeout=START_SECONDS).topics
                if all(name in existing for name in self._topics):
                    # What was put into a topic that was not there at first came after our start.
                    places = self._places(from_beginning=missing)
                    self._consumer.assign(places)
                    self._placed.set()
                    return True
                missing = True
                self._placed.set()
            except KafkaException as error:
                _log.warning("the topics cannot be read for now: %s", error.args[0].str())
            self._stop.wait(AGAIN_SECONDS)
        return False

    def _places(self, *, from_beginning: bool) -> list[TopicPartition]:
        partitions = [TopicPartition(name, 0, OFFSET_BEGINNING) for name in self._topics]
        match self._reader:
            case Reader.MANAGER:
                committed = self._consumer.committed(partitions, timeout=START_SECONDS)
                return [
                    one if one.offset >= 0 else TopicPartition(one.topic, 0, OFFSET_BEGINNING)
                    for one in committed
                ]
            case Reader.WORKER if from_beginning:
                return partitions
            case Reader.WORKER:
                return [TopicPartition(one.topic, 0, self._end_of(one)) for one in partitions]

    def _end_of(self, partition: TopicPartition) -> int:
        _, end = self._consumer.get_watermark_offsets(partition, timeout=START_SECONDS)
        return int(end)

    def _take(self) -> None:
        taken = [delivery for record in self._records() if (delivery := self._delivery(record))]
        if not taken:
            return
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < MOST_WAITING or self._stop.is_set())
            self._waiting.extend(taken)
            self._changed.notify_all()

    def _records(self) -> Sequence[Record]:
        try:
            first = self._consumer.poll(POLL_SECONDS)
            # What lies ready behind it comes along; `consume` alone would wait for a full batch.
            rest = self._consumer.consume(TAKEN_AT_ONCE, timeout=0) if first is not None else []
        except KafkaException as error:
            _log.warning("the topics cannot be read for now: %s", error.args[0].str())
            self._stop.wait(AGAIN_SECONDS)
            return []
        return [first, *rest] if first is not None else []

    def _delivery(self, record: Record) -> Delivery | None:
        error = record.error()
        if error is not None:
            _log.warning("a topic cannot be read for now: %s", error.str())
            return None
        topic, body = self._topics[str(record.topic())], record.value() or b""
        delivery = Delivery(topic, body, str(record.offset()))
        return delivery if self._wanted(delivery) else None
