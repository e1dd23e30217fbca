"""Leadership: one leader at a time, terms that only grow, and no write of one that is over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tidegate.errors import Deposed
from tidegate.model.execution import Execution, new_execution
from tidegate.model.messages import Channel
from tidegate.ports.store import OutgoingMessage, Store
from tidegate.store import SqlStore

from .conftest import Open
from .scenes import NOW, flow_of

LONG, PAST = 60_000, -1


def made(id: str, term: int) -> Execution:
    return new_execution(id, flow_of(), NOW, worker="w-1", term=term)


def test_before_the_first_election_nobody_leads(store: Store) -> None:
    lease = store.leadership.read()
    assert (lease.term, lease.holder, lease.established(LONG)) == (0, "", False)


def test_who_stands_while_nobody_leads_is_elected(store: Store) -> None:
    assert store.leadership.take("a", LONG) == 1
    assert store.leadership.read().established(LONG)
    assert store.leadership.take("b", LONG) is None


def test_a_lease_that_ran_out_can_be_taken_and_not_renewed(store: Store) -> None:
    term = store.leadership.take("a", PAST)
    assert term == 1
    assert store.leadership.renew(term, LONG) is None
    assert store.leadership.take("b", LONG) == 2


def test_a_lease_is_renewed_while_it_lasts(store: Store) -> None:
    term = store.leadership.take("a", 1_000)
    assert term is not None
    before = store.leadership.read().expires_at
    assert store.leadership.renew(term, 3_000_000) is not None
    assert store.leadership.read().expires_at > before


def test_a_fresh_lease_is_renewed_while_others_write(store: SqlStore) -> None:
    term = store.leadership.take("a", LONG)
    assert term is not None
    goes_on = threading.Event()
    writing = store.writer.submit(lambda _: goes_on.wait(30))
    renewed = store.leadership.renew(term, LONG)
    assert not writing.done()
    goes_on.set()
    assert writing.result()
    assert renewed is not None
    assert renewed == replace(store.leadership.read(), now=renewed.now)


def test_one_that_is_over_sees_so_without_writing(store: Store) -> None:
    assert store.leadership.take("a", PAST) == 1
    assert store.leadership.take("b", LONG) == 2
    assert store.leadership.renew(1, LONG) is None


def test_an_assign_is_written_with_the_message_that_tells_of_it(store: Store) -> None:
    term = store.leadership.take("a", LONG)
    assert term is not None
    told = OutgoingMessage(Channel.CONTROL, "w-1", b"run it")
    store.executions.assign_all([made("e-1", term)], term, [told], NOW)
    (found,) = store.messages.take([Channel.CONTROL], ["w-1"], 10)
    assert (found.channel, found.body) == (Channel.CONTROL, b"run it")


def test_a_lease_from_another_clock_counts_as_expired(store: Store) -> None:
    store.leadership.take("a", 1_000_000)
    assert not store.leadership.read().established(LONG)
    assert store.leadership.take("b", LONG) == 2


def test_who_resigns_lets_the_next_one_lead_at_once(store: Store) -> None:
    term = store.leadership.take("a", LONG)
    assert term is not None
    store.leadership.resign(term)
    assert store.leadership.take("b", LONG) == 2
    # Once more changes nothing for the one who leads now.
    store.leadership.resign(term)
    assert store.leadership.read().holder == "b"


def test_of_many_that_stand_at_once_one_is_elected(url: str, opened: Open) -> None:
    stores = [opened(url) for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        terms = list(pool.map(lambda s: s.leadership.take(str(id(s)), LONG), stores))
    assert sorted(term or 0 for term in terms) == [0, 0, 0, 1]


class TestTerm:
    """A leader that was stopped and goes on after its lease writes nothing."""

    @pytest.fixture
    def over(self, store: SqlStore) -> int:
        term = store.leadership.take("a", PAST)
        assert term == 1
        assert store.leadership.take("b", LONG) == 2
        return term

    def test_it_assigns_nothing(self, store: Store, over: int) -> None:
        told = OutgoingMessage(Channel.CONTROL, "w-1", b"run it")
        with pytest.raises(Deposed, match="term 1 is over: b leads"):
            store.executions.assign_all([made("e-1", over)], over, [told], NOW)
        assert store.executions.get("e-1") is None
        assert store.messages.take([Channel.CONTROL], None, 10) == []

    def test_it_takes_nothing_away(self, store: Store, over: int) -> None:
        store.executions.assign_all([made("e-1", 2)], 2, (), NOW)
        with pytest.raises(Deposed):
            store.executions.lose({"e-1": "gone"}, frozenset(), over, NOW)
        with pytest.raises(Deposed):
            store.executions.unload(["w-1"], frozenset(), "dead", over)
        kept = store.executions.get("e-1")
        assert kept is not None
        assert kept.state.open

    def test_it_neither_follows_nor_hands_out_nor_forgets(self, store: Store, over: int) -> None:
        execution = made("e-1", over)
        with pytest.raises(Deposed):
            store.executions.follow([(execution, execution)], over, NOW)
        with pytest.raises(Deposed):
            store.executions.hand_out([execution], over)
        with pytest.raises(Deposed):
            store.instances.trim(NOW, over)
