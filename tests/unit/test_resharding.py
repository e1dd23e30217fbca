"""Other shards for a table that has rows: only where each row keeps its one topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.model.position import START, Block, Offset, Position
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.lake_checks import misfit

HERE, THERE = Position(5, 1), Position(9, 2)
WHOLE = TableDefinition("fact.a", Processor.STEP, ("stage.a",))
TWO = replace(WHOLE, topic="fact.a:0", shards=2, shard_by="k")
THREE = replace(WHOLE, topic="fact.a:0", shards=3, shard_by="k")


def at(**lasts: Position) -> dict[str, Offset]:
    """Put topics to positions: `a` is fact.a, `a0` its first shard."""
    topics = {name: f"fact.a:{name[1:]}" if name[1:] else "fact.a" for name in lasts}
    return {topics[name]: Offset(topics[name], last, seq=1) for name, last in lasts.items()}


@pytest.mark.parametrize(
    ("before", "now", "offsets"),
    [
        (TWO, replace(TWO, delay=5, shard_by="K"), at(a0=HERE, a1=THERE)),
        (WHOLE, TWO, {}),
        (WHOLE, TWO, at(a=HERE, a0=HERE, a1=HERE)),
        (TWO, THREE, at(a0=HERE, a1=HERE, a2=HERE, a=THERE)),
        (THREE, TWO, at(a0=HERE, a1=HERE, a2=HERE)),
        (TWO, WHOLE, at(a0=HERE, a1=HERE, a=HERE)),
        (TWO, replace(TWO, shard_by="j"), at(a0=HERE, a1=HERE)),
        (TWO, THREE, {"fact.a:0": Offset("fact.a:0", START)}),
    ],
)
def test_what_stands_at_one_position_may_be_cut_anew(
    before: TableDefinition, now: TableDefinition, offsets: dict[str, Offset]
) -> None:
    assert misfit(before, now, offsets, {"fact.z": 3}) == ""


@pytest.mark.parametrize(
    ("before", "now", "offsets", "words"),
    [
        (
            WHOLE,
            TWO,
            at(a=HERE, a1=HERE),
            "fact.a was built without shards up to (5, 1), and fact.a:0 stands at (0, -1)",
        ),
        (WHOLE, TWO, at(a=HERE), "--last 5,1, and so the other 1"),
        (WHOLE, TWO, at(a=HERE, a0=THERE, a1=HERE), "--last 5,1 --force"),
        (TWO, WHOLE, at(a0=HERE, a1=HERE), "tidegate offsets set fact.a --last 5,1"),
        (TWO, THREE, at(a0=HERE, a1=HERE), "tidegate offsets set fact.a:2 --last 5,1"),
        (TWO, THREE, at(a0=HERE, a1=THERE), "different positions, from (5, 1) to (9, 2); go back"),
        (TWO, THREE, at(a0=HERE), "different positions, from (0, -1) to (5, 1)"),
        (TWO, replace(TWO, shard_by="j"), at(a0=HERE, a1=THERE), "go back to shards: 2, shard_by"),
    ],
)
def test_what_would_double_or_lose_rows_is_refused_with_the_way_out(
    before: TableDefinition, now: TableDefinition, offsets: dict[str, Offset], words: str
) -> None:
    assert words in misfit(before, now, offsets, {})


def test_an_open_block_and_rows_that_wait_come_first() -> None:
    offsets = at(a0=HERE, a1=HERE, a2=HERE)
    waits = misfit(TWO, THREE, offsets, {"fact.a:1": 4})
    assert "4 rows of fact.a:1 that failed wait" in waits
    open_block = Block(HERE, THERE, 1, 2, False, 0, 1)
    offsets["fact.a:0"] = replace(offsets["fact.a:0"], block=open_block)
    assert "fact.a:0 has a block that is not finished" in misfit(TWO, THREE, offsets, {})
