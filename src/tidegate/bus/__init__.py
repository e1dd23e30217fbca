"""The bus: messages between manager and instances, fast and forgettable; the store is the truth.

    publish ──▶ messages (a table of the store) ──▶ inbox      embedded: rung for by a socket
    publish ──▶ ems.heartbeat, .control, .progress ──▶ inbox   Kafka

An inbox gives each message at least once. What is not done when its reader dies comes again to the
next one, until it is 180 seconds old.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.bus.embedded import EmbeddedBus
from tidegate.ports.outside import Bus
from tidegate.ports.store import Messages
from tidegate.settings import BusSettings

__all__ = ["open_bus"]


def open_bus(
    settings: BusSettings, store_url: str, messages: Messages, now: Callable[[], int]
) -> Bus:
    """Open the bus that the settings name; raises BusError."""
    if settings.embedded:
        return EmbeddedBus(messages, store_url, now)
    # librdkafka is loaded only where it is used.
    from tidegate.bus.kafka import KafkaBus  # noqa: PLC0415

    return KafkaBus(settings.servers, settings.prefix, settings.kafka)
