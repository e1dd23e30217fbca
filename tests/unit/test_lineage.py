"""Lineage: names of topics, the order of building, circles, differences, selectors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.flow import difference
from tidegate.tables.definition import Processor, TableDefinition, TopicName, is_table
from tidegate.tables.graph import LineageCycle, circles, order, select


def _step(topic: str, *depends_on: str, **fields: object) -> TableDefinition:
    return TableDefinition(topic, Processor.STEP, depends_on, **fields)  # type: ignore[arg-type]


def _by_topic(*definitions: TableDefinition) -> dict[str, TableDefinition]:
    return {definition.topic: definition for definition in definitions}


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("fact.orders", TopicName("fact.orders")),
            ("fact.orders#web", TopicName("fact.orders", "web")),
            ("fact.orders#web-2:3", TopicName("fact.orders", "web-2", 3)),
            ("fact.orders:0", TopicName("fact.orders", shard=0)),
            ("_a._b9", TopicName("_a._b9")),
        ],
    )
    def test_a_topic_is_a_table_with_a_tag_and_a_shard(self, text: str, name: TopicName) -> None:
        assert TopicName.parse(text) == name
        assert str(name) == text

    @pytest.mark.parametrize(
        "text",
        [
            *("", "orders", "a.b.c", ".orders", "fact.", "fact.orders#", "fact.orders:", "9a.b"),
            *("fact.orders:x", "fact.orders\n", " fact.orders", "fact.orders#a b", "fact.ördërs"),
            *("fact.orders; DROP TABLE x", "fact.`orders`", "fact.orders--", "../x.y", "a.b/c"),
            *("fact.orders#web'", "fact.orders:" + "9" * 5000, "a." + "b" * 100_000 + "!"),
        ],
    )
    def test_anything_else_is_refused_in_a_short_sentence(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"is not a topic; write db\.table") as refused:
            TopicName.parse(text)
        assert len(str(refused.value)) < 300

    def test_a_table_has_neither_tag_nor_shard(self) -> None:
        assert is_table("fact.orders")
        assert not is_table("fact.orders#web")
        assert not is_table("fact.orders:1")


class TestOrder:
    def test_a_topic_comes_behind_those_that_build_what_it_waits_for(self) -> None:
        found = order([_step("a.mart", "z.fact", "stage.x"), _step("z.fact", "stage.x")])
        assert [definition.topic for definition in found] == ["z.fact", "a.mart"]

    def test_a_table_of_several_topics_comes_whole(self) -> None:
        found = order(
            [_step("a.m", "f.t"), _step("f.t#web", "stage.w"), _step("f.t#shop", "stage.s")]
        )
        assert [definition.topic for definition in found] == ["f.t#shop", "f.t#web", "a.m"]

    def test_shards_come_in_the_order_of_their_numbers(self) -> None:
        shards = replace(_step("f.t", "stage.w"), shards=12, shard_by="k").sharded()
        assert order(reversed(shards)) == shards
        assert [shard.topic for shard in shards] == [f"f.t:{number}" for number in range(12)]

    def test_a_circle_is_named_all_around(self) -> None:
        with pytest.raises(LineageCycle, match=r"in a circle: a\.a → b\.b → c\.c → a\.a"):
            order([_step("a.a", "b.b"), _step("b.b", "c.c"), _step("c.c", "a.a")])

    def test_a_table_that_waits_for_itself_is_a_circle(self) -> None:
        with pytest.raises(LineageCycle, match=r"a\.a → a\.a"):
            order([_step("a.a", "a.a")])

    def test_all_circles_are_found_in_one_go(self) -> None:
        definitions = [
            *(_step("a.a", "b.b"), _step("b.b", "a.a"), _step("c.c", "c.c")),
            *(_step("d.d", "a.a"), _step("e.e", "d.d")),
        ]
        assert [circle.tables for circle in circles(definitions)] == [("a.a", "b.b"), ("c.c",)]

    def test_a_chain_may_be_longer_than_the_stack_of_python(self) -> None:
        chain = [_step(f"t.t{n}", f"t.t{n + 1}") for n in range(5000)]
        assert order(chain)[0].topic == "t.t4999"
        assert len(select(_by_topic(*chain), ["+t.t0"])) == 5000
        assert len(select(_by_topic(*chain), ["t.t4999+"])) == 5000

    @given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
    def test_an_order_is_found_exactly_when_there_is_no_circle(
        self, edges: list[tuple[int, int]]
    ) -> None:
        waits = {n: sorted({b for a, b in edges if a == n}) for n in range(8)}
        definitions = [_step(f"t.t{n}", *(f"t.t{b}" for b in waits[n])) for n in range(8)]
        reached = {n: set(waits[n]) for n in range(8)}
        for _ in range(8):
            reached = {n: to.union(*(reached[b] for b in to)) for n, to in reached.items()}
        in_circle = {f"t.t{n}" for n in range(8) if n in reached[n]}
        found = circles(definitions)
        assert bool(found) == bool(in_circle)
        assert {table for circle in found for table in circle.tables} <= in_circle
        if not found:
            place = {d.topic: at for at, d in enumerate(order(definitions))}
            assert all(place[f"t.t{b}"] < place[f"t.t{a}"] for a, b in edges)


class TestKeeping:
    def test_a_definition_comes_back_from_json_as_it_was(self) -> None:
        definition = _step(
            *("fact.orders#web", "stage.orders", "stage.customers"),
            keys=("id",),
            checks={"amount": "amount > 0"},
            views={"orders": "SELECT 1"},
            vars={"least": 1.5, "name": "ü"},
            tagged=True,
        )
        kept = json.loads(json.dumps(definition.as_dict()))
        assert TableDefinition.from_dict(kept) == definition

    def test_one_of_an_older_version_gets_the_defaults_and_of_a_newer_one_loses_the_rest(
        self,
    ) -> None:
        old = {"topic": "fact.orders", "processor": "step", "of_the_future": 1}
        assert TableDefinition.from_dict(old) == _step("fact.orders")


class TestDifference:
    def test_it_says_what_comes_what_changes_and_what_goes(self) -> None:
        applied = _by_topic(_step("a.same"), _step("a.gone"), _step("a.other", "s.x"))
        project = _by_topic(_step("a.same"), _step("a.new"), _step("a.other", "s.y", delay=1))
        changes = difference(applied, project)
        assert changes.lines() == ["+ a.new (step)", "~ a.other: depends_on, delay", "- a.gone"]
        assert changes.new == (project["a.other"],)

    def test_nothing_differs_from_itself(self) -> None:
        same = _by_topic(_step("a.same", checks={"x": "y > 0"}))
        assert not difference(same, dict(same))


class TestSelectors:
    PROJECT = _by_topic(
        TableDefinition("stage.orders", Processor.SOURCE),
        _step("fact.orders#web", "stage.orders"),
        _step("fact.orders#shop", "stage.orders"),
        _step("fact.hours", "fact.orders"),
        _step("mart.days", "stage.other", unwaited=("fact.hours",)),
        *replace(_step("shop.s#a", "stage.x"), shards=2, shard_by="k").sharded(),
    )

    @pytest.mark.parametrize(
        ("selectors", "topics"),
        [
            ([], "fact.orders#web fact.orders#shop fact.hours mart.days shop.s#a:0 shop.s#a:1"),
            (["shop.s"], "shop.s#a:0 shop.s#a:1"),
            (["shop.s#a"], "shop.s#a:0 shop.s#a:1"),
            (["shop.s#a:*"], "shop.s#a:0 shop.s#a:1"),
            (["shop.s#a:1"], "shop.s#a:1"),
            (["fact.hours"], "fact.hours"),
            (["fact.orders"], "fact.orders#web fact.orders#shop"),
            (["fact.orders#web"], "fact.orders#web"),
            (["fact.*"], "fact.orders#web fact.orders#shop fact.hours"),
            (["+fact.hours"], "fact.hours fact.orders#web fact.orders#shop"),
            (["fact.hours+"], "fact.hours mart.days"),
            (["+mart.days"], "mart.days fact.hours fact.orders#web fact.orders#shop"),
            (["fact.hours", "mart.*"], "fact.hours mart.days"),
        ],
    )
    def test_a_selector_means_topics(self, selectors: list[str], topics: str) -> None:
        assert select(self.PROJECT, selectors) == set(topics.split())

    @pytest.mark.parametrize("selector", ["stage.orders", "fact.nothing", "", "+", "FACT.hours"])
    def test_one_that_finds_nothing_is_refused_with_what_there_is(self, selector: str) -> None:
        with pytest.raises(ValueError, match=r"matches no topic; there are: fact\.orders#web"):
            select(self.PROJECT, [selector])

    def test_an_empty_project_has_none(self) -> None:
        assert select({}, []) == set()
        with pytest.raises(ValueError, match="there are: none"):
            select({}, ["a.b"])
