"""The messages of the control plane: their JSON read with care, and written as the protocol says.

ems.heartbeat   instances → manager   heartbeat
ems.control     manager → instances   etl-execution-assign, etl-execution-cancel,
                                      topology-start, topology-stop, shutdown
ems.progress    instances → manager   etl-execution-accepted, -rejected, -started, -finished,
                                      -failed, etl-data-stream-started, -finished, -failed,
                                      -stats
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import orjson

from tidegate.errors import Malformed
from tidegate.model.fields import Fields, sendable
from tidegate.model.position import rfc3339


class Topic(StrEnum):
    HEARTBEAT = "ems.heartbeat"
    CONTROL = "ems.control"
    PROGRESS = "ems.progress"


class InstanceState(StrEnum):
    """Whether an instance can take work; it says so itself."""

    IDLE = "idle"
    BUSY = "busy"


class Phase(StrEnum):
    """Where in an execution a data stream runs."""

    DATA_EXTRACT = "data-extract"
    STRUCTURE_TRANSFORM = "structure-transform"
    DATA_TRANSFORM = "data-transform"
    DATA_LOAD = "data-load"


@dataclass(frozen=True)
class Heartbeat:
    """An instance lives."""

    id: str
    state: InstanceState
    timestamp: int


@dataclass(frozen=True)
class Assign:
    """An instance is to run an execution."""

    assignee: str
    execution_id: str
    configuration: Mapping[str, Any]
    timestamp: int
    term: int | None = None


@dataclass(frozen=True)
class Cancel:
    """A hint: the execution's row asks for its end."""

    assignee: str
    execution_id: str
    timestamp: int
    term: int | None = None


@dataclass(frozen=True)
class TopologyStart:
    """A hint: the topology's row names this instance."""

    assignee: str
    topology_id: str
    timestamp: int
    term: int | None = None


@dataclass(frozen=True)
class TopologyStop:
    """A hint: the topology's row no longer wants it to run."""

    assignee: str
    topology_id: str
    timestamp: int
    term: int | None = None


@dataclass(frozen=True)
class Shutdown:
    """A hint: the instance is to finish its work and leave."""

    assignee: str
    timestamp: int
    term: int | None = None


@dataclass(frozen=True)
class Accepted:
    execution_id: str
    assignee: str
    timestamp: int


@dataclass(frozen=True)
class Rejected:
    execution_id: str
    assignee: str
    timestamp: int


@dataclass(frozen=True)
class Started:
    execution_id: str
    assignee: str
    timestamp: int


@dataclass(frozen=True)
class Finished:
    execution_id: str
    assignee: str
    timestamp: int


@dataclass(frozen=True)
class Failed:
    execution_id: str
    assignee: str
    timestamp: int
    reason: str


@dataclass(frozen=True)
class StreamStarted:
    execution_id: str
    phase: Phase
    stream: str
    instance_id: str
    timestamp: int


@dataclass(frozen=True)
class StreamFinished:
    execution_id: str
    phase: Phase
    stream: str
    instance_id: str
    timestamp: int


@dataclass(frozen=True)
class StreamFailed:
    execution_id: str
    phase: Phase
    stream: str
    instance_id: str
    timestamp: int
    error: str


@dataclass(frozen=True)
class StreamStats:
    execution_id: str
    phase: Phase
    stream: str
    instance_id: str
    timestamp: int
    total_in: int
    total_out: int
    total_failed: int


Control = Assign | Cancel | TopologyStart | TopologyStop | Shutdown
ExecutionProgress = Accepted | Rejected | Started | Finished | Failed
StreamProgress = StreamStarted | StreamFinished | StreamFailed | StreamStats
Message = Heartbeat | Control | ExecutionProgress | StreamProgress


_TYPES: Mapping[Topic, Mapping[str, type[Message]]] = {
    Topic.HEARTBEAT: {"heartbeat": Heartbeat},
    Topic.CONTROL: {
        "etl-execution-assign": Assign,
        "etl-execution-cancel": Cancel,
        "topology-start": TopologyStart,
        "topology-stop": TopologyStop,
        "shutdown": Shutdown,
    },
    Topic.PROGRESS: {
        "etl-execution-accepted": Accepted,
        "etl-execution-rejected": Rejected,
        "etl-execution-started": Started,
        "etl-execution-finished": Finished,
        "etl-execution-failed": Failed,
        "etl-data-stream-started": StreamStarted,
        "etl-data-stream-finished": StreamFinished,
        "etl-data-stream-failed": StreamFailed,
        "etl-data-stream-stats": StreamStats,
    },
}
_HOMES = {name: topic for topic, types in _TYPES.items() for name in types}
_OF_STREAMS = b'"etl-data-stream-'
_NAMES = {kind: name for types in _TYPES.values() for name, kind in types.items()}


def topic_of(message: Message) -> Topic:
    return _HOMES[_NAMES[type(message)]]


def key_of(message: Message) -> str:
    """Give the instance on heartbeat and control, the execution on progress."""
    match message:
        case Heartbeat():
            return message.id
        case Assign() | Cancel() | TopologyStart() | TopologyStop() | Shutdown():
            return message.assignee
        case _:
            return message.execution_id


def parse(topic: Topic, body: bytes) -> Message:
    """Read what came on a topic; raises Malformed, and nothing else, whatever came."""
    message = Fields.of(body)
    info = message.within("info")
    kind = _TYPES[topic].get(info.text("type")) or _kind_of(info, topic)
    in_info, in_payload = _LAYOUT[kind]
    made = object.__new__(kind)
    # Each field is set, so no more than this is to be done; a frozen one's own way takes longer
    # than to read what is set.
    values = made.__dict__
    for wire in in_info:
        values[wire.attribute] = wire.read(info, wire.name)
    if in_payload:
        payload = message.within("payload")
        for wire in in_payload:
            values[wire.attribute] = wire.read(payload, wire.name)
    return made


def may_wait(body: bytes) -> bool:
    """Guess without reading it whether a message tells of a data stream, which stirs nobody.

    Four of five do. One that is taken for another is read sooner, or later, and read all the same.
    """
    return _OF_STREAMS in body


def _kind_of(info: Fields, topic: Topic) -> type[Message]:
    """Give the type that is meant, if it belongs on the topic."""
    name = info.text("type").strip().lower()
    home = _HOMES.get(name)
    if home is None:
        raise Malformed(f"info.type must be a type of message, not {name[:60]!r}")
    if home is not topic:
        raise Malformed(f"info.type {name} belongs on {home}, not on {topic}")
    return _TYPES[home][name]


def render(message: Message) -> bytes:
    """Write a message as it goes over the bus."""
    in_info, in_payload = _LAYOUT[type(message)]
    info = {"type": _NAMES[type(message)], **_written(message, in_info)}
    return orjson.dumps({"info": info, "payload": _written(message, in_payload)})


def _written(message: Message, wires: Sequence[_Wire]) -> dict[str, Any]:
    values = ((wire, getattr(message, wire.attribute)) for wire in wires)
    return {wire.name: wire.write(value) for wire, value in values if value is not None}


@dataclass(frozen=True)
class _Wire:
    """How one attribute of the messages goes over the bus."""

    attribute: str
    name: str
    read: Callable[[Fields, str], Any]
    write: Callable[[Any], Any] = lambda value: value


_PHASES = {phase.value: phase for phase in Phase}
_STATES = {state.value: state for state in InstanceState}


def _phase(fields: Fields, name: str) -> Phase:
    return fields.choice(name, _PHASES)


def _state(fields: Fields, name: str) -> InstanceState:
    return fields.choice(name, _STATES)


_WIRES = (
    _Wire("id", "id", Fields.uuid),
    _Wire("state", "state", _state),
    _Wire("execution_id", "etlExecutionId", Fields.uuid),
    _Wire("assignee", "assignee", Fields.uuid),
    _Wire("configuration", "configuration", Fields.tree, dict),
    _Wire("topology_id", "topologyId", Fields.name),
    _Wire("reason", "reason", Fields.remark, sendable),
    _Wire("phase", "phase", _phase),
    _Wire("stream", "dataStreamName", Fields.name),
    _Wire("instance_id", "instanceId", Fields.uuid),
    _Wire("error", "error", Fields.remark, sendable),
    _Wire("total_in", "totalInMessages", Fields.count),
    _Wire("total_out", "totalOutMessages", Fields.count),
    _Wire("total_failed", "totalFailedMessages", Fields.count),
    _Wire("term", "term", Fields.count_or_none),
    _Wire("timestamp", "timestamp", Fields.time, rfc3339),
)


def _layout(topic: Topic, kind: type[Message]) -> tuple[Sequence[_Wire], Sequence[_Wire]]:
    """Tell which attributes of a type go into `info` and which into `payload`."""
    own = {field.name for field in fields(kind)}
    # Whom a command is for stands in `info`, who tells of progress in `payload`.
    outside = {"term", "timestamp", *(["assignee"] if topic is Topic.CONTROL else [])}
    return (
        [wire for wire in _WIRES if wire.attribute in own & outside],
        [wire for wire in _WIRES if wire.attribute in own - outside],
    )


_LAYOUT = {kind: _layout(topic, kind) for topic, types in _TYPES.items() for kind in types.values()}
