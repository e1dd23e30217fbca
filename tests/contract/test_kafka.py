"""The bus on a real broker: topics that fit or are named, foreign writers, a broker not there."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.brokers import PASSWORD, USER, Broker, free_port
from tests.control.processes import until
from tidegate.bus.kafka import KafkaBus
from tidegate.errors import BusError
from tidegate.model.messages import Channel, render

from .places import assign, heartbeat, read, take, take_until, uuid

prefixes = itertools.count()
LOGIN = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": USER}
Opened = Callable[[], KafkaBus]


@pytest.fixture
def prefix() -> str:
    return f"k{next(prefixes)}."


@pytest.fixture
def opened(broker: Broker, prefix: str) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(KafkaBus(broker.servers, prefix, {})))


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.servers})


def make(admin: AdminClient, name: str, config: dict[str, str], partitions: int = 1) -> None:
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        made.result()


def send(broker: Broker, name: str, *bodies: bytes | None, key: str | None = None) -> None:
    """Write as a program does that knows nothing of Tidegate."""
    producer = Producer({"bootstrap.servers": broker.servers})
    for body in bodies:
        producer.produce(name, body, key)
    assert producer.flush(20) == 0


def test_topics_are_made_as_the_protocol_wants_them(
    opened: Opened, admin: AdminClient, prefix: str
) -> None:
    opened().create_channels()
    for topic in Channel:
        name = f"{prefix}{topic}"
        assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 1
        found = settings_of(admin, name)
        assert found["retention.ms"] == "180000"
        assert int(found["segment.ms"]) <= 60_000


def settings_of(admin: AdminClient, name: str) -> dict[str, str]:
    asked = [ConfigResource(ResourceType.TOPIC, name)]
    (found,) = (one.result() for one in admin.describe_configs(asked).values())
    return {setting: str(entry.value) for setting, entry in found.items()}


def test_a_topic_with_several_partitions_is_named(
    opened: Opened, admin: AdminClient, prefix: str
) -> None:
    make(admin, f"{prefix}ems.control", {"retention.ms": "180000"}, partitions=3)
    with pytest.raises(
        BusError,
        match=rf"the topic {prefix}ems\.control has 3 partitions and needs 1.*delete it",
    ):
        opened().create_channels()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"retention.ms": "1000"}, "retention.ms was 1000"),
        ({}, "retention.ms was 604800000, segment.ms was 604800000"),
        (
            {"retention.ms": "180000", "segment.ms": "30000", "cleanup.policy": "compact"},
            "cleanup.policy was compact",
        ),
    ],
)
def test_a_topic_with_other_settings_is_set_anew(
    opened: Opened,
    admin: AdminClient,
    prefix: str,
    config: dict[str, str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"{prefix}ems.progress"
    make(admin, name, config)
    opened().create_channels()
    # The broker follows its controller a moment later.
    until(
        lambda: (
            (found := settings_of(admin, name))["retention.ms"] == "180000"
            and found["cleanup.policy"] == "delete"
            and int(found["segment.ms"]) <= 60_000
        ),
        "the settings are those that the bus needs",
    )
    (line,) = [one.getMessage() for one in caplog.records if name in one.getMessage()]
    assert line.startswith(f"the topic {name} was set anew as the bus needs it: ")
    assert said in line
    caplog.clear()
    opened().create_channels()
    assert not [one for one in caplog.records if name in one.getMessage()]


def test_a_user_who_may_not_change_settings_is_told_which(
    opened: Opened, admin: AdminClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin, f"{prefix}ems.progress", {"retention.ms": "1000", "segment.ms": "30000"})

    def refuse(*_: object, **__: object) -> dict[str, Future[None]]:
        refused: Future[None] = Future()
        refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {"one": refused}

    # The broker of the tests allows everybody everything.
    monkeypatch.setattr(AdminClient, "incremental_alter_configs", refuse)
    with pytest.raises(BusError) as refused:
        opened().create_channels()
    assert str(refused.value).startswith(
        f"the topic {prefix}ems.progress has retention.ms 1000 and needs 180000, and this user"
    )


def test_a_topic_that_fits_is_left_as_it_is(
    opened: Opened, admin: AdminClient, prefix: str
) -> None:
    make(admin, f"{prefix}ems.progress", {"retention.ms": "180000"})
    opened().create_channels()


def test_who_starts_before_the_manager_makes_no_topic_and_misses_nothing(
    opened: Opened, admin: AdminClient, prefix: str
) -> None:
    worker, manager = opened(), opened()
    worker.publish([heartbeat(1)])
    inbox = worker.worker_inbox([uuid(1)])
    assert inbox.receive(1.0) == []
    assert not [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefix)]
    manager.create_channels()
    manager.publish([assign(1)])
    assert read(take(inbox, 1)) == [assign(1)]
    beats, deadline = manager.manager_inbox(), time.monotonic() + 20
    while not (came := beats.receive(0.2)):
        assert time.monotonic() < deadline
        worker.publish([heartbeat(2)])
    assert read(came)[0] == heartbeat(2)


def test_a_worker_reads_from_now_on(opened: Opened) -> None:
    bus = opened()
    bus.create_channels()
    early = bus.worker_inbox([uuid(1)])
    bus.publish([assign(1, 1)])
    take(early, 1)
    late = bus.worker_inbox([uuid(1)])
    bus.publish([assign(1, 2)])
    assert read(take(late, 1)) == [assign(1, 2)]


@pytest.mark.parametrize("key", [None, "whatever", uuid(2)])
def test_a_foreign_manager_may_key_its_commands_as_it_likes(
    broker: Broker, opened: Opened, prefix: str, key: str | None
) -> None:
    bus = opened()
    bus.create_channels()
    inbox = bus.worker_inbox([uuid(1)])
    send(broker, f"{prefix}ems.control", render(assign(2)), render(assign(1)), key=key)
    assert read(take(inbox, 1)) == [assign(1)]
    assert inbox.receive(0.3) == []


def test_what_cannot_be_read_is_given_to_a_worker_to_be_counted(
    broker: Broker, opened: Opened, prefix: str
) -> None:
    bus = opened()
    bus.create_channels()
    inbox = bus.worker_inbox([uuid(1)])
    send(broker, f"{prefix}ems.control", b"{", render(assign(2)), None, render(assign(1)))
    taken = take(inbox, 3)
    assert [one.where for one in taken] == ["0", "2", "3"]
    assert [one.body for one in taken[:2]] == [b"{", b""]


def test_what_cannot_be_read_is_given_to_the_manager_with_its_offset(
    broker: Broker, opened: Opened, prefix: str
) -> None:
    bus = opened()
    bus.create_channels()
    inbox = bus.manager_inbox()
    send(broker, f"{prefix}ems.progress", b"\xff\x00", None, b"{}")
    taken = take(inbox, 3)
    assert [one.body for one in taken] == [b"\xff\x00", b"", b"{}"]
    assert [one.where for one in taken] == ["0", "1", "2"]


def test_a_manager_that_stands_still_keeps_no_other_from_reading(opened: Opened) -> None:
    still, heir = opened(), opened()
    still.create_channels()
    take_nothing = still.manager_inbox()
    assert take_nothing.receive(0.5) == []
    heir.publish([heartbeat(1)])
    assert take_until(heir.manager_inbox(), heartbeat(1)) == [heartbeat(1)]


def test_a_producer_that_lost_count_is_made_anew(opened: Opened) -> None:
    bus = opened()
    bus.create_channels()
    inbox = bus.manager_inbox()
    lost = bus._producer
    bus._heard(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "lost count", True))
    deadline = time.monotonic() + 20
    while bus._producer is lost:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    bus.publish([heartbeat(1)])
    assert read(take(inbox, 1)) == [heartbeat(1)]


def test_a_login_that_is_right_is_taken(broker: Broker) -> None:
    settings = {**LOGIN, "sasl.password": PASSWORD}
    KafkaBus(broker.sasl_servers, "", settings).close()


@pytest.mark.parametrize(
    ("listener", "settings", "said"),
    [
        ("sasl", {**LOGIN, "sasl.password": "s3cret"}, r"refused the login \(.*Invalid username"),
        ("sasl", {}, r"cannot be reached \(.*security.protocol"),
        ("plain", {"security.protocol": "ssl"}, "cannot be (reached|talked to).*security.protocol"),
        ("plain", {"no.such.thing": "1"}, 'client refuses: .*"no.such.thing"'),
        ("none", {}, r"cannot be reached \(.*Connection refused\); check \[bus\] url"),
    ],
)
def test_a_bus_that_cannot_be_opened_is_told_in_a_sentence_soon(
    broker: Broker, listener: str, settings: dict[str, str], said: str
) -> None:
    places = {"sasl": broker.sasl, "plain": broker.plain, "none": free_port()}
    began = time.monotonic()
    with pytest.raises(BusError, match=said) as refused:
        KafkaBus(f"127.0.0.1:{places[listener]}", "", settings)
    assert time.monotonic() - began < 10
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "ms in state" not in str(refused.value)


def test_a_host_that_nobody_knows_is_named() -> None:
    with pytest.raises(BusError, match=r"kafka://nowhere\.invalid:1 is not known by that name"):
        KafkaBus("nowhere.invalid:1", "", {})


def test_the_client_writes_nothing_to_the_terminal() -> None:
    script = f"""
from tidegate.bus.kafka import KafkaBus
from tidegate.errors import BusError
try:
    KafkaBus("127.0.0.1:{free_port()}", "", {{}})
except BusError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("refused\n", "")
