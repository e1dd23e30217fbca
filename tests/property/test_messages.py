"""Messages: what is written is read again, and nothing that comes can do harm."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Malformed
from tidegate.model.messages import (
    Accepted,
    Assign,
    Cancel,
    Channel,
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
    StreamStarted,
    StreamStats,
    TopologyStart,
    TopologyStop,
    channel_of,
    parse,
    render,
)

from .profile import examples

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
COUNTS = st.integers(0, 2**63 - 1)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.uuids().map(str),
    "assignee": st.uuids().map(str),
    "execution_id": st.uuids().map(str),
    "instance_id": st.uuids().map(str),
    "state": st.sampled_from(InstanceState),
    "phase": st.sampled_from(Phase),
    "stream": TEXTS.filter(bool),
    "topology_id": TEXTS.filter(bool),
    "reason": TEXTS,
    "error": TEXTS,
    "configuration": st.dictionaries(TEXTS, VALUES, max_size=4),
    "term": st.none() | COUNTS,
    # The years 1 to 9999.
    "timestamp": st.integers(-62_135_596_800_000, 253_402_300_799_999),
    "total_in": COUNTS,
    "total_out": COUNTS,
    "total_failed": COUNTS,
}
KINDS: list[type[Message]] = [
    *(Heartbeat, Assign, Cancel, TopologyStart, TopologyStop, Shutdown),
    *(Accepted, Rejected, Started, Finished, Failed),
    *(StreamStarted, StreamFinished, StreamFailed, StreamStats),
]


def _of(kind: type[Message]) -> st.SearchStrategy[Message]:
    return st.builds(kind, **{one.name: ATTRIBUTES[one.name] for one in dataclasses.fields(kind)})


MESSAGES = st.sampled_from(KINDS).flatmap(_of)
TOPICS = st.sampled_from(Channel)


def survives(topic: Channel, body: bytes) -> Message | None:
    """Read a body; nothing but Malformed, in one line, may come of it."""
    try:
        message = parse(topic, body)
    except Malformed as refused:
        said = str(refused)
        assert said.strip()
        assert len(said) < 300
        assert "\n" not in said
        return None
    # What was taken can be given on, and means the same.
    assert parse(topic, render(message)) == message
    return message


@examples(400)
@given(MESSAGES)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert parse(channel_of(message), render(message)) == message


@examples(300)
@given(TOPICS, st.binary(max_size=200))
def test_any_bytes_are_survived(topic: Channel, body: bytes) -> None:
    survives(topic, body)


@examples(300)
@given(TOPICS, VALUES)
def test_any_json_is_survived(topic: Channel, value: object) -> None:
    survives(topic, orjson.dumps(value))


@examples(250)
@given(MESSAGES, st.data())
def test_a_message_with_one_value_changed_is_read_or_refused(
    message: Message, data: st.DataObject
) -> None:
    body = json.loads(render(message))
    section = data.draw(st.sampled_from([one for one in ("info", "payload") if body[one]]))
    name = data.draw(st.sampled_from(sorted(body[section])))
    if data.draw(st.booleans()):
        del body[section][name]
    else:
        body[section][name] = data.draw(VALUES | st.integers() | st.just("\0"))
    survives(channel_of(message), json.dumps(body).encode())


@examples(400)
@given(MESSAGES, st.data())
def test_a_message_with_its_bytes_damaged_is_read_or_refused(
    message: Message, data: st.DataObject
) -> None:
    body = bytearray(render(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                body[at] = data.draw(st.integers(0, 255))
            case 1:
                body[at:at] = data.draw(st.binary(max_size=3))
            case _ if len(body) > 1:
                del body[at]
    survives(channel_of(message), bytes(body))


@examples(100)
@given(MESSAGES, TOPICS)
def test_extra_fields_change_nothing(message: Message, topic: Channel) -> None:
    body = json.loads(render(message))
    for section in (body, body["info"], body["payload"]):
        section["extra"] = [{"deep": None}]
    if topic is channel_of(message):
        assert parse(topic, json.dumps(body).encode()) == message
    else:
        with pytest.raises(Malformed):
            parse(topic, json.dumps(body).encode())
