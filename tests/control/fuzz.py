"""Messages that are almost right, and bytes that are none: made by chance, the same by its seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from tidegate.errors import Malformed
from tidegate.model.messages import (
    Accepted,
    Assign,
    Cancel,
    Channel,
    ExecutionProgress,
    Failed,
    Finished,
    Heartbeat,
    InstanceState,
    Message,
    Phase,
    Rejected,
    Shutdown,
    Started,
    StreamFailed,
    StreamFinished,
    StreamProgress,
    StreamStarted,
    StreamStats,
    TopologyStart,
    channel_of,
    parse,
    render,
)

NOW = 1_700_000_000_000
STRANGER = "dddddddd-0000-4000-8000-000000000004"
"""An instance that is none of ours."""
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**400, -(2**63) - 1, "", " ", "\0", "ems", "𝕬" * 300),
    *([], [[]], {}, {"": {"": None}}, "x" * 300_000, "9999-99-99T99:99:99Z", "\ud800"),
)
NONSENSE: tuple[bytes, ...] = (
    *(b"", b" ", b"\0", b"\xff\xfe", b"null", b"true", b"[]", b"{}", b'""', b"1e999", b"NaN"),
    *(b"[" * 100_000, b'{"info":' * 5_000, b'{"info":{"type":"heartbeat"}}', b"\xef\xbb\xbf{"),
    b'{"info":{"type":"heartbeat","timestamp":NaN},"payload":{}}',
    b'{"info":{"type":"etl-execution-assign"},"info":{},"payload":null}',
)


@dataclass(frozen=True)
class Fuzz:
    """A source of messages, most of them wrong."""

    random: Random
    slots: tuple[str, ...]
    """The instances whose worker listens."""

    def bodies(self, topic: Channel) -> Iterator[bytes]:
        """Give bodies for a topic without end."""
        while True:
            yield self.random.choice(_MUTATIONS)(self, self._message(topic))

    def uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def _message(self, topic: Channel) -> Message:
        slot, id = self.random.choice(self.slots), self.uuid()
        where = (id, self.random.choice(list(Phase)), "things", STRANGER, NOW)
        match topic:
            case Channel.HEARTBEAT:
                return Heartbeat(STRANGER, self.random.choice(list(InstanceState)), NOW)
            case Channel.CONTROL:
                commands: list[Message] = [
                    Assign(slot, id, {"kind": "table", "id": "fact.orders"}, NOW, 1),
                    Assign(STRANGER, id, {"kind": "external"}, NOW),
                    Cancel(slot, id, NOW),
                    TopologyStart(slot, "t", NOW),
                    Shutdown(STRANGER, NOW),
                ]
                return self.random.choice(commands)
            case Channel.PROGRESS:
                progress: list[Message] = [
                    Accepted(id, slot, NOW),
                    Rejected(id, slot, NOW),
                    Started(id, slot, NOW),
                    Finished(id, slot, NOW),
                    Failed(id, STRANGER, NOW, "it rained"),
                    StreamStarted(*where),
                    StreamFinished(*where),
                    StreamFailed(*where, "it rained"),
                    StreamStats(*where, 3, 2, 1),
                ]
                return self.random.choice(progress)


def is_bad(topic: Channel, body: bytes, slots: tuple[str, ...]) -> bool:
    """Tell whether a body has to be counted: no execution that is made here is in any store."""
    try:
        message = parse(topic, body)
    except Malformed:
        return True
    if isinstance(message, Assign):
        return message.assignee in slots
    return isinstance(message, ExecutionProgress | StreamProgress)


def _as_it_is(_: Fuzz, message: Message) -> bytes:
    return render(message)


def _nonsense(fuzz: Fuzz, _: Message) -> bytes:
    return fuzz.random.choice((*NONSENSE, fuzz.random.randbytes(fuzz.random.randrange(400))))


def _damaged(fuzz: Fuzz, message: Message) -> bytes:
    body = bytearray(render(message))
    for _ in range(fuzz.random.randint(1, 4)):
        body[fuzz.random.randrange(len(body))] = fuzz.random.randrange(256)
    return bytes(body)


def _cut(fuzz: Fuzz, message: Message) -> bytes:
    body = render(message)
    return body[: fuzz.random.randrange(len(body))]


def _said_twice(_: Fuzz, message: Message) -> bytes:
    body = render(message)
    return body[:-1] + b"," + body[1:]


def _changed(fuzz: Fuzz, message: Message) -> bytes:
    """Leave a field out, or put something odd in its place."""
    body = json.loads(render(message))
    section = fuzz.random.choice(["info", "payload"])
    names = [*body[section], None]
    name = fuzz.random.choice(names)
    if name is None:
        body[section] = fuzz.random.choice(ODD)
    elif fuzz.random.random() < 0.3:
        del body[section][name]
    else:
        body[section][name] = fuzz.random.choice(ODD)
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _deep(fuzz: Fuzz, message: Message) -> bytes:
    body = json.loads(render(message))
    value: Any = 1
    for _ in range(fuzz.random.choice([50, 99, 101, 500])):
        value = {"x": value} if fuzz.random.random() < 0.5 else [value]
    body["payload"]["configuration"] = {"x": value}
    return json.dumps(body).encode()


def _elsewhere(fuzz: Fuzz, message: Message) -> bytes:
    """Say what belongs on another topic."""
    others = [topic for topic in Channel if topic is not channel_of(message)]
    return render(fuzz._message(fuzz.random.choice(others)))


_MUTATIONS: tuple[Callable[[Fuzz, Message], bytes], ...] = (
    *(_as_it_is, _nonsense, _damaged, _cut, _said_twice, _changed, _changed, _changed),
    *(_deep, _elsewhere),
)
