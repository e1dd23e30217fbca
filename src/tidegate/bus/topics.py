"""The topics of the bus on Kafka: made when they are missing, refused when they do not fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tidegate.bus.cluster import START_SECONDS, Cluster
from tidegate.errors import BusError
from tidegate.model.messages import Topic

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

_log = logging.getLogger(__name__)


class Topics:
    """A look at a cluster, and its topics put in order."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._heard: list[KafkaError] = []
        self._admin: AdminClient = cluster.admin(self._heard.append)

    def existing(self) -> Mapping[str, int]:
        """Give the partitions of those of the bus's topics that exist; raises BusError."""
        names = {self._cluster.name(topic) for topic in Topic}
        try:
            found = self._admin.list_topics(timeout=START_SECONDS).topics
        except KafkaException as error:
            raise self._explained(error) from None
        return {name: len(one.partitions) for name, one in found.items() if name in names}

    def create(self) -> None:
        """Make the missing topics and hold the others against what they must be."""
        existing = self.existing()
        missing = [name for name in map(self._cluster.name, Topic) if name not in existing]
        if missing:
            self._make(missing)
        # Also those just made: another manager may have been first, a broker may have its rules.
        for name, partitions in self.existing().items():
            if partitions != 1:
                raise BusError(
                    f"the topic {name} has {partitions} partitions and needs 1, for the order of"
                    " its messages; delete it, and the manager makes it anew"
                )
        self._check_settings(list(map(self._cluster.name, Topic)))

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

    def _check_settings(self, names: list[str]) -> None:
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(asked, request_timeout=START_SECONDS)
        for resource, answer in answers.items():
            try:
                found = answer.result()
            except KafkaException as error:
                # The right to look is seldom given; the topic itself works without.
                _log.warning("%s cannot be checked: %s", resource.name, error.args[0].str())
                continue
            for setting, needed in _NEEDED.items():
                if found[setting].value != needed:
                    raise BusError(
                        f"the topic {resource.name} has {setting} {found[setting].value} and needs"
                        f" {needed}; change that setting, or delete the topic, and the manager"
                        " makes it anew"
                    )

    def _explained(self, error: KafkaException) -> BusError:
        # What the client heard of its connections is told in its callback, when it is asked.
        self._admin.poll(HEAR_SECONDS)
        return self._cluster.explain(error.args[0], self._heard)
