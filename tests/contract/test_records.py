"""What is kept for reading: lineage with its history, datasets, lists of executions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from tidegate.errors import UnknownName
from tidegate.model.execution import ExecutionState
from tidegate.ports.store import Applied, Store
from tidegate.store import SqlStore
from tidegate.store.datasets import append
from tidegate.tables.definition import TableDefinition

from .conftest import Open
from .scenes import (
    NOW,
    TOPIC,
    assigned,
    claimed,
    committed,
    definition,
)


def test_an_applied_definition_is_current(store: Store) -> None:
    store.definitions.apply([definition()], [], "ann", NOW)
    assert store.definitions.current() == {TOPIC: Applied(definition(), 1, "ann", NOW)}


def test_views_keep_their_order(store: Store) -> None:
    store.definitions.apply([definition()], [], "ann", NOW)
    read = store.definitions.version(TOPIC, 1)
    assert isinstance(read, TableDefinition)
    assert list(read.views) == ["z_first", "a_second"]


def test_each_change_is_a_version_and_history_stays(store: Store) -> None:
    versions = [definition(comment=text) for text in ("one", "two", "three")]
    for number, one in enumerate(versions):
        store.definitions.apply([one], [], f"user-{number}", NOW + number)
    assert store.definitions.current()[TOPIC].version == 3
    assert store.definitions.history(TOPIC) == [
        Applied(one, number + 1, f"user-{number}", NOW + number)
        for number, one in enumerate(versions)
    ]
    assert store.definitions.version(TOPIC, 2) == versions[1]


def test_a_removed_topic_is_not_current_but_remembered(store: Store) -> None:
    store.definitions.apply([definition(), definition("fact.other")], [], "ann", NOW)
    store.definitions.apply([], [TOPIC], "bob", NOW + 1)
    assert list(store.definitions.current()) == ["fact.other"]
    assert store.definitions.history(TOPIC) == [Applied(definition(), 1, "ann", NOW)]
    assert store.definitions.version(TOPIC, 1) == definition()


def test_a_topic_that_comes_back_counts_on(store: Store) -> None:
    store.definitions.apply([definition()], [], "ann", NOW)
    store.definitions.apply([], [TOPIC], "ann", NOW)
    store.definitions.apply([definition(comment="again")], [], "ann", NOW)
    assert store.definitions.current()[TOPIC].version == 2


def test_removing_an_unknown_topic_is_no_error(store: Store) -> None:
    store.definitions.apply([], ["fact.nope"], "ann", NOW)
    assert store.definitions.current() == {}


def test_a_version_that_never_was_is_named(store: Store) -> None:
    with pytest.raises(UnknownName, match=r"no version 1 of fact\.orders, only none at all"):
        store.definitions.version(TOPIC, 1)
    store.definitions.apply([definition()], [], "ann", NOW)
    with pytest.raises(UnknownName, match=r"no version 2 of fact\.orders, only 1;"):
        store.definitions.version(TOPIC, 2)


def test_projects_applied_at_once_get_versions_of_their_own(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(2)]

    def apply(store: SqlStore) -> None:
        for number in range(5):
            store.definitions.apply([definition(comment=str(number))], [], "ann", NOW)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(apply, stores))
    assert [one.version for one in stores[0].definitions.history(TOPIC)] == list(range(1, 11))


def test_locations_start_at_zero_and_belong_to_the_flow(store: Store) -> None:
    committed(store, "e1")
    claimed(store, "e2", topic="fact.other")
    assert [e["_location"] for e in store.datasets.entities(TOPIC)] == [0, 1]
    assert [e["_location"] for e in store.datasets.entities("fact.other")] == [0]
    assert store.datasets.flows() == [TOPIC, "fact.other"]
    assert store.datasets.entities("fact.nope") == []


def _append(store: SqlStore, flow: str, *ids: str) -> int:
    entities = [{"_id": id, "event_type": "write-error", "text": f"é {id}"} for id in ids]

    def write(connection: Connection) -> int:
        return append(connection, flow, entities, NOW)

    return store.writer.write(write)


def test_entities_are_read_from_a_location_on(store: SqlStore) -> None:
    assert _append(store, "pipe", "a", "b", "c") == 0
    assert _append(store, "pipe", "d") == 3
    assert [e["_id"] for e in store.datasets.entities("pipe", since=1, limit=2)] == ["b", "c"]
    assert store.datasets.entities("pipe", since=3) == [
        {"_id": "d", "event_type": "write-error", "text": "é d", "_location": 3}
    ]


def test_latest_gives_the_newest_of_each_id_in_order(store: SqlStore) -> None:
    _append(store, "pipe", "a", "b", "a", "c", "b")
    _append(store, "other", "a", "a", "a", "a", "a", "a")
    assert [(e["_id"], e["_location"]) for e in store.datasets.latest("pipe")] == [
        ("a", 2),
        ("c", 3),
        ("b", 4),
    ]
    assert store.datasets.latest("nope") == []


def test_entities_are_read_from_the_end(store: SqlStore) -> None:
    _append(store, "pipe", "a", "b", "a", "c", "b")
    _append(store, "other", "z")
    read = store.datasets
    assert [(e["_id"], e["_location"]) for e in read.newest("pipe", 2)] == [("c", 3), ("b", 4)]
    assert [e["_location"] for e in read.newest("pipe", 9)] == [0, 1, 2, 3, 4]
    latest = read.latest("pipe", limit=2)
    assert [(e["_id"], e["_location"]) for e in latest] == [("c", 3), ("b", 4)]
    assert read.newest("nope", 1) == []
    assert read.latest("nope", limit=1) == []


def test_what_has_begun_since_is_found_by_flow_and_time(store: SqlStore) -> None:
    for number, flow in enumerate(("fact.a", "fact.b", "fact.c", "fact.a")):
        assigned(store, f"e{number}", flow, NOW + number)
    begun = store.executions.begun
    assert [made.id for made in begun(["fact.a", "fact.c"], NOW)] == ["e0", "e2", "e3"]
    assert [made.id for made in begun({"fact.a", "fact.b"}, NOW + 1)] == ["e1", "e3"]
    assert begun(["fact.a"], NOW + 4) == []
    assert begun([], NOW) == []
    assert begun(["fact.nope"], NOW) == []


def test_locations_never_collide(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(3)]

    def fill(number: int) -> None:
        for round in range(10):
            _append(stores[number], "pipe", f"{number}-{round}", f"{number}-{round}-b")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(fill, range(3)))
    assert [e["_location"] for e in stores[0].datasets.entities("pipe")] == list(range(60))


def test_executions_come_newest_first(store: Store) -> None:
    for id, at in (("a", NOW), ("c", NOW + 2), ("b", NOW + 1), ("d", NOW + 2)):
        assigned(store, id, at=at)
    assert [made.id for made in store.executions.list()] == ["d", "c", "b", "a"]
    assert [made.id for made in store.executions.list(limit=2)] == ["d", "c"]


def test_executions_are_listed_by_flow_and_state(store: Store) -> None:
    committed(store, "done")
    claimed(store, "running")
    assigned(store, "waiting", topic="fact.other")
    by_state = {
        state: [made.id for made in store.executions.list(state=state)]
        for state in (ExecutionState.FINISHED, ExecutionState.RUNNING, ExecutionState.ASSIGNED)
    }
    assert list(by_state.values()) == [["done"], ["running"], ["waiting"]]
    assert [made.id for made in store.executions.list(flow="fact.other")] == ["waiting"]
    assert store.executions.list(flow="fact.other", state=ExecutionState.LOST) == []
