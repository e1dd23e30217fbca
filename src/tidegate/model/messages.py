"""The messages of the control plane: their JSON read with care, and written as the protocol says.

ems.heartbeat   instances → manager   heartbeat
ems.control     manager → instances   etl-execution-assign, etl-execution-cancel,
                                      topology-start, topology-stop, shutdown
ems.progress    instances → manager   etl-execution-accepted, -rejected, -started, -finished,
                                      -failed, etl-data-stream-started, -finished, -failed,
                                      -stats

A stranger may have written them: each field is what it must be, or is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from tidegate.errors import Malformed
from tidegate.model.position import rfc3339

LONGEST_TEXT = 10_000
"""So many signs of a text are sent and taken: a broker refuses what is too long whole."""
DEEPEST = 100
"""So deep may the values of an object stand within each other."""
_GREATEST = 2**63 - 1
_REMEMBERED, _SHORT = 10_000, 100
"""How many texts are remembered as what they were read as, and how long they are at most."""


def sendable(text: str) -> str:
    """Give what JSON, a broker and a database all take of what some exception said."""
    whole = text[:LONGEST_TEXT].encode("utf-8", "replace").decode()
    return whole.replace("\0", "\ufffd")


T = TypeVar("T", bound=StrEnum)
V = TypeVar("V")


@dataclass(slots=True)
class Fields:
    """An object of a message, each field read as what it must be.

    Not frozen: that alone would take as long as to read a field, thousands of times a second.
    """

    values: Mapping[str, Any]
    path: str

    @classmethod
    def of(cls, body: bytes) -> Fields:
        try:
            found = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
        except ValueError:
            # Also for what is no UTF-8, holds NaN, or stands too deep.
            raise Malformed("the message is not JSON") from None
        if not isinstance(found, dict):
            raise Malformed(f"the message must be an object, not {_kind(found)}")
        return cls(found, "")

    def within(self, name: str) -> Fields:
        return Fields(self._typed(name, dict, "an object"), f"{name}.")

    def text(self, name: str) -> str:
        found: str = self._typed(name, str, "a text")
        return found

    def name(self, name: str) -> str:
        """Read a text that the store keeps as a name."""
        text = self.text(name)
        if not text or "\0" in text or len(text) > LONGEST_TEXT:
            raise self._wrong(name, f"must have 1 to {LONGEST_TEXT} signs, none of them NUL")
        return text

    def remark(self, name: str) -> str:
        return sendable(self.text(name))

    def uuid(self, name: str) -> str:
        uuid = _uuid(self.text(name))
        if uuid is None:
            raise self._wrong(name, "must be a UUID")
        return uuid

    def choice(self, name: str, kind: Mapping[str, T]) -> T:
        """Read one of several, each under its own word."""
        text = self.text(name)
        found = kind.get(text) or kind.get(text.strip().lower())
        if found is None:
            raise self._wrong(name, f"must be one of {', '.join(kind)}")
        return found

    def count(self, name: str) -> int:
        number: int = self._typed(name, int, "a whole number")
        if not 0 <= number <= _GREATEST:
            raise self._wrong(name, "must lie between 0 and 2^63−1")
        return number

    def count_or_none(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.count(name)

    def tree(self, name: str) -> Mapping[str, Any]:
        """Read an object of anything that is not too deep to be written again."""
        tree: dict[str, Any] = self._typed(name, dict, "an object")
        level: list[Any] = [tree]
        for _ in range(DEEPEST):
            level = [below for one in level for below in _below(one)]
            if not level:
                return tree
        raise self._wrong(name, f"stands more than {DEEPEST} values deep")

    def time(self, name: str) -> int:
        """Read RFC 3339, or the numbers that some JSON writers make of a time."""
        found = self.values.get(name)
        if found is None:
            raise self._mistaken(name, "a time")
        time = _milliseconds(found) if type(found) is str else _milliseconds_of(found)
        if time is None:
            raise self._wrong(name, "must be a time as in RFC 3339, such as 2026-01-31T09:30:00Z")
        return time

    def _typed(self, name: str, kind: type, called: str) -> Any:
        found = self.values.get(name)
        # Not isinstance: for Python a bool is an int; for JSON it is none. No field is a bool.
        if type(found) is not kind:
            raise self._mistaken(name, called)
        return found

    def _mistaken(self, name: str, called: str) -> Malformed:
        """Say that a field is not there, or is not what it must be."""
        found = self.values.get(name)
        if found is None:
            return self._wrong(name, "is missing" if name not in self.values else "is null")
        return self._wrong(name, f"must be {called}, not {_kind(found)}")

    def _wrong(self, name: str, what: str) -> Malformed:
        return Malformed(f"{self.path}{name} {what}")


_UUID = re.compile(
    r"(?:urn:uuid:)?\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?"
)


# RFC 3339, and what writers of JSON make of it: no offset (then UTC), none of its colon, a blank
# for the T, no seconds, the name of the zone behind it.
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?"
    r" ?(?:[Zz]|UTC|GMT|([+-])([0-9]{2}):?([0-9]{2})?)?(?:\[[^\]]*\])?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LEAST_MILLISECONDS = 10**11
"""A smaller number is a time in seconds: as milliseconds it would lie before 1974."""


def _remembering(read: Callable[[str], V]) -> Callable[[str], V]:
    """Read the same text once: a dozen messages tell of one execution, with the same times."""
    known = lru_cache(_REMEMBERED)(read)
    return lambda text: known(text) if len(text) <= _SHORT else read(text)


@_remembering
def _uuid(text: str) -> str | None:
    found = _UUID.fullmatch(text.strip().lower())
    return "-".join(found.groups()) if found else None


@_remembering
def _milliseconds(text: str) -> int | None:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hours, off_minutes = found.groups()
    hours, minutes, seconds = int(hour), int(minute), int(second or 0)
    # 60 is a leap second: the first of the next minute, as clocks without them count.
    if hours > 23 or minutes > 59 or seconds > 60 or int(off_minutes or 0) > 59:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    offset = (int(off_hours or 0) * 60 + int(off_minutes or 0)) * (-1 if sign == "-" else 1)
    whole = days * 86_400 + hours * 3_600 + (minutes - offset) * 60 + seconds
    # Cut, not rounded: so are the times of rows.
    time = whole * 1000 + int(f"{fraction or ''}000"[:3])
    return time if _FIRST <= time <= _LAST else None


def _milliseconds_of(found: Any) -> int | None:
    """Read the time that a number tells; not that of a bool, which is an int for Python alone."""
    if type(found) not in (int, float) or found < 0:
        return None
    time = found if found >= _LEAST_MILLISECONDS else found * 1000
    return int(time) if time <= _LAST else None


def _below(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return []


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case float():
            return "a number with a fraction, or too large"
        case int():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


class Channel(StrEnum):
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
_TYPES: Mapping[Channel, Mapping[str, type[Message]]] = {
    Channel.HEARTBEAT: {"heartbeat": Heartbeat},
    Channel.CONTROL: {
        "etl-execution-assign": Assign,
        "etl-execution-cancel": Cancel,
        "topology-start": TopologyStart,
        "topology-stop": TopologyStop,
        "shutdown": Shutdown,
    },
    Channel.PROGRESS: {
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
_HOMES = {name: channel for channel, types in _TYPES.items() for name in types}
_OF_STREAMS = b'"etl-data-stream-'
_NAMES = {kind: name for types in _TYPES.values() for name, kind in types.items()}


def channel_of(message: Message) -> Channel:
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


def parse(channel: Channel, body: bytes) -> Message:
    """Read what came on a channel; raises Malformed, and nothing else, whatever came."""
    message = Fields.of(body)
    info = message.within("info")
    kind = _TYPES[channel].get(info.text("type")) or _kind_of(info, channel)
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
    """Guess without reading it whether a message tells of a data stream, which wakes nobody.

    Four of five do. One that is taken for another is read sooner, or later, and read all the same.
    """
    return _OF_STREAMS in body


def _kind_of(info: Fields, channel: Channel) -> type[Message]:
    """Give the type that is meant, if it belongs on the channel."""
    name = info.text("type").strip().lower()
    home = _HOMES.get(name)
    if home is None:
        raise Malformed(f"info.type must be a type of message, not {name[:60]!r}")
    if home is not channel:
        raise Malformed(f"info.type {name} belongs on {home}, not on {channel}")
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


def _layout(channel: Channel, kind: type[Message]) -> tuple[Sequence[_Wire], Sequence[_Wire]]:
    """Tell which attributes of a type go into `info` and which into `payload`."""
    own = {field.name for field in fields(kind)}
    # Whom a command is for stands in `info`, who tells of progress in `payload`.
    outside = {"term", "timestamp", *(["assignee"] if channel is Channel.CONTROL else [])}
    return (
        [wire for wire in _WIRES if wire.attribute in own & outside],
        [wire for wire in _WIRES if wire.attribute in own - outside],
    )


_LAYOUT = {
    kind: _layout(channel, kind) for channel, types in _TYPES.items() for kind in types.values()
}
