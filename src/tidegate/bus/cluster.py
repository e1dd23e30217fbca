"""A Kafka cluster: how its clients are set up, and what their errors mean in one sentence."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.errors import BusError
from tidegate.model.messages import Topic

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

    def name(self, topic: Topic) -> str:
        return f"{self.prefix}{topic}"

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
