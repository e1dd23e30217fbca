"""Messages that nobody could take: kept with the reason, the newest, and never too many."""

from __future__ import annotations

from tidegate.model.messages import Channel
from tidegate.ports.store import Delivery
from tidegate.store import SqlStore
from tidegate.store import messages as rejected

from .scenes import NOW


def delivery(where: int, topic: Channel = Channel.PROGRESS, body: bytes = b"\xff\x00{") -> Delivery:
    return Delivery(topic, body, str(where))


def test_they_are_listed_newest_first_and_counted(store: SqlStore) -> None:
    store.rejected.keep([(delivery(1), "no JSON"), (delivery(2), "no id")], NOW)
    store.rejected.keep(
        [(delivery(3, Channel.HEARTBEAT), "no id"), (delivery(4), "no id")], NOW + 1
    )
    found = store.rejected.list()
    assert [(one.where, one.at) for one in found] == [
        ("4", NOW + 1),
        ("3", NOW + 1),
        ("2", NOW),
        ("1", NOW),
    ]
    assert found[-1].body == b"\xff\x00{"
    assert [one.where for one in store.rejected.list(limit=2)] == ["4", "3"]
    assert store.rejected.counts() == {
        Channel.HEARTBEAT: {"no id": 1},
        Channel.PROGRESS: {"no JSON": 1, "no id": 2},
    }


def test_nothing_kept_is_nothing_listed(store: SqlStore) -> None:
    store.rejected.keep([], NOW)
    assert store.rejected.list() == []
    assert store.rejected.counts() == {}
    assert store.rejected.totals() == {}


def test_a_body_is_cut_and_a_reason_is_made_storable(store: SqlStore) -> None:
    store.rejected.keep([(delivery(1, body=b"x" * 50_000), "odd \0 \ud800 sign")], NOW)
    (found,) = store.rejected.list()
    assert found.body == b"x" * rejected.MOST_BYTES
    assert found.reason == "odd \ufffd ? sign"


def test_only_the_newest_are_kept(store: SqlStore) -> None:
    most = rejected.MOST_ROWS
    store.rejected.keep([(delivery(n), "no id") for n in range(most)], NOW)
    store.rejected.keep([(delivery(n), "no id") for n in range(most, most + 7)], NOW)
    found = store.rejected.list()
    assert len(found) == most
    assert (found[0].where, found[-1].where) == (str(most + 6), "7")
    # All of them are counted.
    assert store.rejected.totals() == {Channel.PROGRESS: most + 7}


def test_one_that_several_read_is_counted_once(store: SqlStore) -> None:
    for _ in range(2):
        store.rejected.keep([(delivery(1, Channel.CONTROL), "no JSON")], NOW)
    # In a topic that was made anew the same place holds another one.
    store.rejected.keep([(delivery(1, Channel.CONTROL, b"x"), "no JSON")], NOW)
    store.rejected.keep([(delivery(1), "no JSON")], NOW)
    assert store.rejected.totals() == {Channel.CONTROL: 2, Channel.PROGRESS: 1}
