"""The bus on Kafka: channels made and checked, an idempotent producer, inboxes without a group.

A thread of its own takes what comes, so that nothing slow sits in the client's loop.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as Record
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidegate.errors import BusError, Malformed
from tidegate.model.messages import Channel, Message, channel_of, key_of, parse, render
from tidegate.ports.store import Delivery, OutgoingMessage

C = TypeVar("C", Producer, Consumer, AdminClient)
START_SECONDS = 5.0
"""How long the first look at a cluster may take."""
_log = logging.getLogger("tidegate.bus.kafka")


# A line for each attempt to connect, ten a second. What of it matters is told in our own words, by
# the callback for errors; whoever looks for more lowers this level.
_client_log = logging.getLogger("tidegate.bus.kafka.client")


_client_log.setLevel(logging.CRITICAL)


# Back soon after a broker is; anything may be set otherwise in [bus.kafka].
_DEFAULTS = {"client.id": "tidegate", "reconnect.backoff.max.ms": "1000"}
_PRODUCER = {
    "enable.idempotence": "true",
    "linger.ms": "1",
    # What is older than that, the store has told by now.
    "message.timeout.ms": "60000",
}
_CONSUMER = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # For a reader that stood still for longer than messages are kept.
    "auto.offset.reset": "earliest",
}
_LOGIN = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_MEANINGS: tuple[tuple[tuple[int, ...], str], ...] = (
    (
        _LOGIN,
        "refused the login ({said}); check the mechanism, user and password in [bus.kafka] sasl.*",
    ),
    (
        (KafkaError._SSL,),
        "cannot be talked to over TLS ({said}); check [bus.kafka] security.protocol and ssl.*",
    ),
    (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        "does not give this user the rights it needs ({said}); grant them on the topics ems.*",
    ),
    (
        (KafkaError._RESOLVE,),
        "is not known by that name ({said}); check [bus] url",
    ),
)
_UNREACHABLE = (
    "cannot be reached ({said}); check [bus] url, [bus.kafka] security.protocol and that the broker"
    " runs, then try again"
)


@dataclass(frozen=True)
class Cluster:
    """The brokers of one bus and the names of its topics there."""

    servers: str
    prefix: str
    settings: Mapping[str, str]

    def name(self, channel: Channel) -> str:
        return f"{self.prefix}{channel}"

    def producer(self, heard: Callable[[KafkaError], None]) -> Producer:
        return self._made(Producer, _PRODUCER, heard)

    def consumer(self, group: str) -> Consumer:
        return self._made(Consumer, {**_CONSUMER, "group.id": f"{self.prefix}{group}"}, _note)

    def admin(self, heard: Callable[[KafkaError], None]) -> AdminClient:
        return self._made(AdminClient, {}, heard)

    def explain(self, error: KafkaError, heard: list[KafkaError]) -> BusError:
        """Say what went wrong, by the most telling of all that was heard."""
        told = [error, *heard]
        for codes, meaning in _MEANINGS:
            for one in told:
                if one.code() in codes:
                    return self._wrong(meaning, one)
        # What stands last is that every broker is down: the line before says why.
        causes = [one for one in heard if one.code() != KafkaError._ALL_BROKERS_DOWN]
        return self._wrong(_UNREACHABLE, causes[0] if causes else error)

    def _wrong(self, meaning: str, error: KafkaError) -> BusError:
        return BusError(f"the bus kafka://{self.servers} {meaning.format(said=_said(error))}")

    def _made(
        self, kind: type[C], own: Mapping[str, str], heard: Callable[[KafkaError], None]
    ) -> C:
        conf: dict[str, Any] = {
            **_DEFAULTS,
            **own,
            **self.settings,
            "bootstrap.servers": self.servers,
            "error_cb": heard,
        }
        try:
            # librdkafka would write its log to the terminal.
            return kind(conf, logger=_client_log)
        except (KafkaException, ValueError, TypeError) as error:
            cause = error.args[0] if error.args else error
            said = cause.str() if isinstance(cause, KafkaError) else str(cause)
            raise BusError(
                f"[bus.kafka] has a setting that Kafka's client refuses: {said}"
            ) from None


def _note(error: KafkaError) -> None:
    _log.warning("%s", error.str())


def _said(error: KafkaError) -> str:
    """Give what the client said, without how long it was at it."""
    return re.sub(r" ?\(after \d+ms in state .*", "", " ".join(str(error.str()).split()))[:200]


RETENTION = "180000"
HEAR_SECONDS = 0.2
_NEEDED = {"retention.ms": RETENTION, "cleanup.policy": "delete"}
_MADE_WITH = {
    **_NEEDED,
    # Only closed segments are dropped: short ones, so that three minutes are about three minutes.
    "segment.ms": "30000",
    "segment.bytes": str(16 * 1024 * 1024),
    # By the broker's clock, whatever the producers' are.
    "message.timestamp.type": "LogAppendTime",
}
_LONGEST_SEGMENT = 60_000
"""Milliseconds; nothing of a segment goes before all of it may."""
_log = logging.getLogger(__name__)


class Topics:
    """A look at a cluster, and its topics put in order."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._heard: list[KafkaError] = []
        self._admin: AdminClient = cluster.admin(self._heard.append)

    def existing(self) -> Mapping[str, int]:
        """Give the partitions of those of the bus's topics that exist; raises BusError."""
        names = {self._cluster.name(channel) for channel in Channel}
        try:
            found = self._admin.list_topics(timeout=START_SECONDS).topics
        except KafkaException as error:
            raise self._explained(error) from None
        return {name: len(one.partitions) for name, one in found.items() if name in names}

    def create(self) -> None:
        """Make the missing topics and hold the others against what they must be."""
        existing = self.existing()
        missing = [name for name in map(self._cluster.name, Channel) if name not in existing]
        if missing:
            self._make(missing)
        # Also those just made: another manager may have been first, a broker may have its rules.
        for name, partitions in self.existing().items():
            if partitions != 1:
                raise BusError(
                    f"the topic {name} has {partitions} partitions and needs 1, for the order of"
                    " its messages; delete it, and the manager makes it anew"
                )
        self._settle(list(map(self._cluster.name, Channel)))

    def _make(self, names: list[str]) -> None:
        # The cluster's own number of replicas.
        wanted = [NewTopic(name, 1, -1, config=_MADE_WITH) for name in names]
        for name, making in self._admin.create_topics(
            wanted, request_timeout=START_SECONDS
        ).items():
            try:
                making.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                raise BusError(
                    f"the topic {name} cannot be made ({error.args[0].str()}); make it yourself,"
                    f" with 1 partition and retention.ms {RETENTION}"
                ) from None

    def _settle(self, names: list[str]) -> None:
        """Set anew what does not fit: a broker that makes topics does so by its own rules."""
        for name, wrong in self._misfits(names).items():
            self._alter(name, wrong)
            said = ", ".join(f"{setting} was {value}" for setting, value in wrong.items())
            _log.warning("the topic %s was set anew as the bus needs it: %s", name, said)

    def _misfits(self, names: list[str]) -> Mapping[str, Mapping[str, str]]:
        """Give, by topic, the settings that do not fit, as they are."""
        misfits = {}
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(asked, request_timeout=START_SECONDS)
        for resource, answer in answers.items():
            try:
                found = answer.result()
            except KafkaException as error:
                # The right to look is seldom given; the topic itself works without.
                _log.warning("%s cannot be checked: %s", resource.name, error.args[0].str())
                continue
            values = {setting: found[setting].value for setting in (*_NEEDED, "segment.ms")}
            wrong = {name: values[name] for name in _NEEDED if values[name] != _NEEDED[name]}
            if int(values["segment.ms"]) > _LONGEST_SEGMENT:
                wrong["segment.ms"] = values["segment.ms"]
            if wrong:
                misfits[resource.name] = wrong
        return misfits

    def _alter(self, name: str, wrong: Mapping[str, str]) -> None:
        changes = [
            ConfigEntry(setting, _MADE_WITH[setting], incremental_operation=AlterConfigOpType.SET)
            for setting in wrong
        ]
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        (answer,) = self._admin.incremental_alter_configs(
            [topic], request_timeout=START_SECONDS
        ).values()
        try:
            answer.result()
        except KafkaException as error:
            setting, value = next(iter(wrong.items()))
            raise BusError(
                f"the topic {name} has {setting} {value} and needs {_MADE_WITH[setting]}, and this"
                f" user may not change it ({error.args[0].str()}); change that setting, or delete"
                " the topic, and the manager makes it anew"
            ) from None

    def _explained(self, error: KafkaException) -> BusError:
        # What the client heard of its connections is told in its callback, when it is asked.
        self._admin.poll(HEAR_SECONDS)
        return self._cluster.explain(error.args[0], self._heard)


POLL_SECONDS = 0.25
"""How long the end of an inbox can go unnoticed by its thread."""
AGAIN_SECONDS = 1.0
TAKEN_AT_ONCE = 1000
MOST_WAITING = 10_000
CLOSING_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Role(Enum):
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
        channels: Sequence[Channel],
        reader: Role,
        wanted: Callable[[Delivery], bool],
    ) -> None:
        self._channels = {cluster.name(channel): channel for channel in channels}
        self._reader, self._wanted = reader, wanted
        self._consumer: Consumer = cluster.consumer(f"tidegate-{reader.value}")
        self._changed = threading.Condition()
        self._waiting: deque[Delivery] = deque()
        self._woken = False
        self._undone: dict[Channel, dict[int, None]] = {channel: {} for channel in channels}
        """Offsets that were given out, in order."""
        self._reached: dict[Channel, int] = {}
        self._to_commit: dict[Channel, int] = {}
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
            self._undone[delivery.channel][int(delivery.where)] = None
            self._reached[delivery.channel] = int(delivery.where) + 1
        return taken

    def done(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._undone[delivery.channel].pop(int(delivery.where), None)
        with self._changed:
            for channel in {delivery.channel for delivery in deliveries}:
                # Up to the first that is not done: those behind it may come twice, none is lost.
                self._to_commit[channel] = next(iter(self._undone[channel]), self._reached[channel])

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
        if not done or self._reader is not Role.MANAGER:
            return
        names = {channel: name for name, channel in self._channels.items()}
        places = [TopicPartition(names[channel], 0, offset) for channel, offset in done.items()]
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
                if all(name in existing for name in self._channels):
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
        partitions = [TopicPartition(name, 0, OFFSET_BEGINNING) for name in self._channels]
        match self._reader:
            case Role.MANAGER:
                committed = self._consumer.committed(partitions, timeout=START_SECONDS)
                return [
                    one if one.offset >= 0 else TopicPartition(one.topic, 0, OFFSET_BEGINNING)
                    for one in committed
                ]
            case Role.WORKER if from_beginning:
                return partitions
            case Role.WORKER:
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
        channel, body = self._channels[str(record.topic())], record.value() or b""
        delivery = Delivery(channel, body, str(record.offset()))
        return delivery if self._wanted(delivery) else None


POLL_SECONDS_KAFKA = 0.5
CLOSING_SECONDS_KAFKA = 5.0
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

    def create_channels(self) -> None:
        self._topics.create()
        self._existing = frozenset(map(self._cluster.name, Channel))

    def publish(self, messages: Sequence[Message]) -> None:
        lost = [why for message in messages if (why := self._send(message)) is not None]
        if lost:
            _log.warning("%d messages are not sent: %s", len(lost), lost[0])

    def enclose(self, _messages: Sequence[Message]) -> Sequence[OutgoingMessage]:
        return ()

    def announce(self, messages: Sequence[Message]) -> None:
        self.publish(messages)

    def manager_inbox(self) -> KafkaInbox:
        channels = [Channel.HEARTBEAT, Channel.PROGRESS]
        inbox = KafkaInbox(self._cluster, channels, Role.MANAGER, lambda _delivery: True)
        self._inboxes.append(inbox)
        return inbox

    def worker_inbox(self, instances: Sequence[str]) -> KafkaInbox:
        mine = frozenset(instances)
        inbox = KafkaInbox(
            self._cluster,
            [Channel.CONTROL],
            Role.WORKER,
            lambda delivery: _is_for(mine, delivery),
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
        left = self._producer.flush(CLOSING_SECONDS_KAFKA)
        if left:
            _log.warning("%d messages are not sent: the broker did not take them in time", left)

    def _send(self, message: Message) -> str | None:
        """Hand one message to the producer; tell what was in the way."""
        name = self._cluster.name(channel_of(message))
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
            self._producer.poll(POLL_SECONDS_KAFKA)
            if len(self._existing) < len(Channel):
                self._look_for_topics()
            if self._fatal.is_set():
                self._fatal.clear()
                self._producer = self._new_producer()

    def _look_for_topics(self) -> None:
        names = {self._cluster.name(channel) for channel in Channel}
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
        return key_of(parse(delivery.channel, delivery.body)) in instances
    except Malformed:
        # For nobody or for anybody: every reader is given it, and the store counts it once.
        return True


def _complain(error: KafkaError | None, _record: Record) -> None:
    if error is not None:
        _log.warning("a message is not sent: %s", error.str())
