"""Messages: the protocol's JSON, what strangers make of it, and what is refused by its field."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from tidegate.errors import Malformed
from tidegate.model.messages import (
    DEEPEST,
    LONGEST_TEXT,
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
    StreamProgress,
    StreamStarted,
    StreamStats,
    TopologyStart,
    TopologyStop,
    channel_of,
    key_of,
    may_wait,
    parse,
    render,
)

A = "11111111-2222-4333-8444-aaaaaaaaaaaa"
E = "99999999-2222-4333-8444-eeeeeeeeeeee"
AT = 1_700_000_000_123
TIME = "2023-11-14T22:13:20.123Z"
STREAM = {
    "etlExecutionId": E,
    "phase": "data-load",
    "dataStreamName": "fact.orders",
    "instanceId": A,
}

# Each as it stands in the protocol, with ours behind them.
SAMPLES: list[tuple[Message, Channel, str, dict[str, Any]]] = [
    (
        Heartbeat(A, InstanceState.BUSY, AT),
        Channel.HEARTBEAT,
        A,
        {"info": {"type": "heartbeat", "timestamp": TIME}, "payload": {"id": A, "state": "busy"}},
    ),
    (
        Assign(A, E, {"kind": "external", "deep": [{"x": 1.5}]}, AT),
        Channel.CONTROL,
        A,
        {
            "info": {"type": "etl-execution-assign", "assignee": A, "timestamp": TIME},
            "payload": {
                "etlExecutionId": E,
                "configuration": {"kind": "external", "deep": [{"x": 1.5}]},
            },
        },
    ),
    *(
        (
            kind(E, A, AT),
            Channel.PROGRESS,
            E,
            {
                "info": {"type": f"etl-execution-{name}", "timestamp": TIME},
                "payload": {"etlExecutionId": E, "assignee": A},
            },
        )
        for kind, name in (
            (Accepted, "accepted"),
            (Rejected, "rejected"),
            (Started, "started"),
            (Finished, "finished"),
        )
    ),
    (
        Failed(E, A, AT, "no space"),
        Channel.PROGRESS,
        E,
        {
            "info": {"type": "etl-execution-failed", "timestamp": TIME},
            "payload": {"etlExecutionId": E, "assignee": A, "reason": "no space"},
        },
    ),
    (
        StreamStarted(E, Phase.DATA_LOAD, "fact.orders", A, AT),
        Channel.PROGRESS,
        E,
        {"info": {"type": "etl-data-stream-started", "timestamp": TIME}, "payload": STREAM},
    ),
    (
        StreamFinished(E, Phase.DATA_LOAD, "fact.orders", A, AT),
        Channel.PROGRESS,
        E,
        {"info": {"type": "etl-data-stream-finished", "timestamp": TIME}, "payload": STREAM},
    ),
    (
        StreamStats(E, Phase.DATA_LOAD, "fact.orders", A, AT, 3, 2, 1),
        Channel.PROGRESS,
        E,
        {
            "info": {"type": "etl-data-stream-stats", "timestamp": TIME},
            "payload": {
                **STREAM,
                "totalInMessages": 3,
                "totalOutMessages": 2,
                "totalFailedMessages": 1,
            },
        },
    ),
    (
        StreamFailed(E, Phase.DATA_LOAD, "fact.orders", A, AT, "no space"),
        Channel.PROGRESS,
        E,
        {
            "info": {"type": "etl-data-stream-failed", "timestamp": TIME},
            "payload": {**STREAM, "error": "no space"},
        },
    ),
    (
        Cancel(A, E, AT, 7),
        Channel.CONTROL,
        A,
        {
            "info": {
                "type": "etl-execution-cancel",
                "assignee": A,
                "timestamp": TIME,
                "term": 7,
            },
            "payload": {"etlExecutionId": E},
        },
    ),
    (
        TopologyStart(A, "ticker", AT, 7),
        Channel.CONTROL,
        A,
        {
            "info": {"type": "topology-start", "assignee": A, "timestamp": TIME, "term": 7},
            "payload": {"topologyId": "ticker"},
        },
    ),
    (
        TopologyStop(A, "ticker", AT),
        Channel.CONTROL,
        A,
        {
            "info": {"type": "topology-stop", "assignee": A, "timestamp": TIME},
            "payload": {"topologyId": "ticker"},
        },
    ),
    (
        Shutdown(A, AT, 7),
        Channel.CONTROL,
        A,
        {
            "info": {"type": "shutdown", "assignee": A, "timestamp": TIME, "term": 7},
            "payload": {},
        },
    ),
]


@pytest.mark.parametrize(("message", "topic", "key", "body"), SAMPLES)
def test_a_message_is_written_and_read_as_the_protocol_says(
    message: Message, topic: Channel, key: str, body: dict[str, Any]
) -> None:
    assert json.loads(render(message)) == body
    assert parse(topic, json.dumps(body).encode()) == message
    assert (channel_of(message), key_of(message)) == (topic, key)


@pytest.mark.parametrize(("message", "topic", "key", "body"), SAMPLES)
def test_each_field_that_is_missing_null_or_of_another_type_is_named(
    message: Message, topic: Channel, key: str, body: dict[str, Any]
) -> None:
    del message, key
    for section in ("info", "payload"):
        for name in set(body[section]) - {"term"}:
            values: list[object] = [None, True, [], -1, "\0"]
            for wrong in values:
                changed = {**body, section: {**body[section], name: wrong}}
                if wrong == "\0" and name in ("reason", "error"):
                    continue
                with pytest.raises(Malformed, match=rf"^{section}\.{name} "):
                    parse(topic, orjson.dumps(changed))
            less = {key: value for key, value in body[section].items() if key != name}
            with pytest.raises(Malformed, match=rf"^{section}\.{name} is missing$"):
                parse(topic, orjson.dumps({**body, section: less}))


@pytest.mark.parametrize(("message", "topic", "key", "body"), SAMPLES)
def test_a_message_on_another_topic_is_refused(
    message: Message, topic: Channel, key: str, body: dict[str, Any]
) -> None:
    del message, key
    for other in set(Channel) - {topic}:
        with pytest.raises(Malformed, match=rf"^info\.type .* belongs on {topic}, not on {other}$"):
            parse(other, orjson.dumps(body))


def beat(**info: Any) -> bytes:
    whole = {"type": "heartbeat", "timestamp": TIME, **info}
    return orjson.dumps({"info": whole, "payload": {"id": A, "state": "idle"}})


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2023-11-14T22:13:20Z", AT - 123),
        ("2023-11-14t22:13:20.1z", AT - 23),
        ("2023-11-14T22:13:20.123999Z", AT),
        ("2023-11-14T22:13:20,123456789Z", AT),
        ("2023-11-14T23:43:20.123+01:30", AT),
        ("2023-11-14T17:13:20.123-0500", AT),
        ("2023-11-14T17:13:20.123-05", AT),
        ("2023-11-14T23:13:20.123+01:00[Europe/Berlin]", AT),
        ("2023-11-14 22:13:20.123 UTC", AT),
        (" 2023-11-14T22:13:20.123 ", AT),
        ("2023-11-14T22:13Z", AT - 20_123),
        ("1972-06-30T23:59:60Z", 78_796_800_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        (AT, AT),
        (float(AT), AT),
        (AT / 1000, AT),
        (1_700_000_000, AT - 123),
    ],
)
def test_times_are_read_as_writers_of_json_make_them(written: object, at: int) -> None:
    found = parse(Channel.HEARTBEAT, beat(timestamp=written))
    assert found.timestamp == at
    assert parse(Channel.HEARTBEAT, render(found)) == found


@pytest.mark.parametrize(
    "written",
    [
        "",
        "now",
        "2023-11-14",
        "2023-13-14T22:13:20Z",
        "2023-02-29T22:13:20Z",
        "2023-11-14T24:13:20Z",
        "2023-11-14T22:13:61Z",
        "2023-11-14T22:13:20+01:99",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "٢٠٢٣-11-14T22:13:20Z",
        10**18,
        1e300,
        -1e300,
        -1,
        True,
        {},
    ],
)
def test_what_is_no_time_is_refused(written: object) -> None:
    with pytest.raises(Malformed, match=r"^info\.timestamp must be a time as in RFC 3339"):
        parse(Channel.HEARTBEAT, beat(timestamp=written))


@pytest.mark.parametrize("kind", ["HEARTBEAT", "HeartBeat", " heartbeat "])
def test_the_type_is_matched_without_regard_to_case(kind: str) -> None:
    assert parse(Channel.HEARTBEAT, beat(type=kind)) == Heartbeat(A, InstanceState.IDLE, AT)


@pytest.mark.parametrize(
    "id", [A.upper(), A.replace("-", ""), f"{{{A}}}", f"urn:uuid:{A}", f" {A}\n"]
)
def test_ids_are_taken_as_libraries_print_them(id: str) -> None:
    body = {
        "info": {"type": "heartbeat", "timestamp": TIME, "more": 1},
        "payload": {"id": id, "state": "IDLE", "host": {"name": "x"}},
        "trace": None,
    }
    found = parse(Channel.HEARTBEAT, b"\xef\xbb\xbf" + orjson.dumps(body))
    assert found == Heartbeat(A, InstanceState.IDLE, AT)


@pytest.mark.parametrize("id", ["", "x", A[:-1], f"{A}0", A.replace("1", "g"), "worker-1"])
def test_what_is_no_uuid_is_refused(id: str) -> None:
    body = {"info": {"type": "heartbeat", "timestamp": TIME}, "payload": {"id": id}}
    with pytest.raises(Malformed, match=r"^payload\.id must be a UUID$"):
        parse(Channel.HEARTBEAT, orjson.dumps(body))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the message is not JSON"),
        (b"\xff\xfe", "the message is not JSON"),
        (b"{", "the message is not JSON"),
        (b'{"info": NaN}', "the message is not JSON"),
        (b"[" * 100_000, "the message is not JSON"),
        (b'{"a":' * 100_000, "the message is not JSON"),
        (b"null", "the message must be an object, not null"),
        (b"[]", "the message must be an object, not a list"),
        (b"{}", "info is missing"),
        (b'{"info": []}', "info must be an object, not a list"),
        (b'{"info": {}}', "info.type is missing"),
        (b'{"info": {"type": 5}}', "info.type must be a text, not a number"),
        (b'{"info": {"type": "x"}}', "info.type must be a type of message, not 'x'"),
        (beat(type="heartbeat")[:-40] + b'"state":1}}', "the message is not JSON"),
    ],
)
def test_what_is_no_message_is_refused_in_a_sentence(body: bytes, said: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse(Channel.HEARTBEAT, body)
    assert str(refused.value) == said


@pytest.mark.parametrize("count", [-1, 1.0, 2.5, True, "3", 2**63, 2**64, 1e30])
def test_a_count_is_a_whole_number_that_a_database_takes(count: object) -> None:
    body = json.loads(render(StreamStats(E, Phase.DATA_LOAD, "s", A, AT, 3, 2, 1)))
    body["payload"]["totalOutMessages"] = count
    with pytest.raises(Malformed, match=r"^payload\.totalOutMessages must "):
        parse(Channel.PROGRESS, json.dumps(body).encode())


def test_a_term_may_be_absent_or_null_but_not_wrong() -> None:
    body = json.loads(render(Shutdown(A, AT, 2**63 - 1)))
    assert parse(Channel.CONTROL, json.dumps(body).encode()) == Shutdown(A, AT, 2**63 - 1)
    body["info"]["term"] = None
    del body["payload"]
    assert parse(Channel.CONTROL, json.dumps(body).encode()) == Shutdown(A, AT)
    body["info"]["term"] = "7"
    with pytest.raises(Malformed, match=r"^info\.term must be a whole number, not a text$"):
        parse(Channel.CONTROL, json.dumps(body).encode())


def test_a_configuration_may_be_deep_but_not_without_end() -> None:
    def nested(depth: int) -> bytes:
        tree: Any = 1
        for level in range(depth - 1):
            tree = [tree] if level % 2 else {"x": tree}
        body = json.loads(render(Assign(A, E, {}, AT)))
        body["payload"]["configuration"] = {"x": tree}
        return json.dumps(body).encode()

    deepest = parse(Channel.CONTROL, nested(DEEPEST - 1))
    assert parse(Channel.CONTROL, render(deepest)) == deepest
    for depth in (DEEPEST, 500):
        with pytest.raises(Malformed, match=r"^payload\.configuration stands more than"):
            parse(Channel.CONTROL, nested(depth))


def test_whatever_an_exception_said_can_be_sent() -> None:
    odd = "\ud800 \0 \n ö " + "x" * 2 * LONGEST_TEXT
    message = parse(Channel.PROGRESS, render(Failed(E, A, AT, odd)))
    assert isinstance(message, Failed)
    assert message.reason.startswith("? \ufffd \n ö xxx")
    assert len(message.reason) == LONGEST_TEXT


@pytest.mark.parametrize("message", [message for message, *_ in SAMPLES])
def test_what_tells_of_a_stream_may_wait_and_nothing_else(message: Message) -> None:
    assert may_wait(render(message)) == isinstance(message, StreamProgress)
