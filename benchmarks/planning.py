"""What comes before a block: its bounds over many files, and the plan over many topics."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.bed import Options, bench_bed, judge
from tidegate.cli.output import print_table
from tidegate.model.duration import HOUR, SECOND
from tidegate.model.looks import Ahead, Look
from tidegate.model.position import START, Offset, Position
from tidegate.tables.block_finder import DeltaLake
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.graph import LineageGraph, order
from tidegate.tables.plan import Facts, make_plan
from tidegate.tables.planner import keep_plan

_FILES_A_COMMIT = 500
_LINEAGE = "- {table: fact.a, depends_on: stage.a, transforms: a, maxstep: 100000}\n"


def block_bounds(options: Options) -> None:
    """Time the search for a block over a base of many files.

    They are real files of a hundred rows each, written by deltalake, five hundred a commit: one
    partition a file makes them cheap. The bare work is to open the table's log. Ours is all of
    `find_block` after one more commit, as a worker that built from the table before finds it: the
    log read on, the columns, the list of files, the bounds; from the table's beginning, where every
    file counts.
    """
    files = {
        "lineage.yaml": _LINEAGE,
        "views/a.sql": "SELECT pos, id FROM stage.a WHERE block(pos, id)",
    }
    with bench_bed(files) as bed:
        _write_files(bed.path("stage.a"), options.files)
        definition = bed.parts.topics["fact.a"]
        lake = DeltaLake(bed.parts.tables, bed.spark)
        end = Position(options.files * 100, 0)

        def ours() -> None:
            found = lake.find_block(definition, START, end, end.pos + 1)
            if found is None or found.rows != min(100_000, options.files * 100):
                raise SystemExit(f"a block of other rows was found: {found}")

        def land() -> None:
            row = {"pos": [end.pos + 1], "id": [end.pos + 1], "part": [options.files]}
            write_deltalake(bed.path("stage.a"), pa.table(row), mode="append")

        bare = _milliseconds(lambda: DeltaTable(bed.path("stage.a")), options.repeats)
        mine = _milliseconds(ours, options.repeats, before=land)
    line = (options.files, bare, mine, mine / bare)
    print_table(("files", "log opened ms", "block found ms", "ratio"), [line], empty="")
    judge("block bounds, ms", mine, 100)


def _write_files(path: str, files: int) -> None:
    for first in range(0, files, _FILES_A_COMMIT):
        numbers = range(first * 100, min(files, first + _FILES_A_COMMIT) * 100)
        rows = pa.table({"pos": numbers, "id": numbers, "part": [n // 100 for n in numbers]})
        write_deltalake(path, rows, mode="append", partition_by=["part"])


def many_topics(options: Options) -> None:
    """Time a plan over many topics in chains of five, as a manager makes it again and again.

    The bare work is one walk over the definitions in their order, with a look at each position.
    The first plan judges every topic. Those after it keep what has not moved: a second has gone by,
    all landed tables were looked at again, and none or one in a hundred of the topics has moved.
    """
    facts = _facts(options.topics)
    graph = LineageGraph.of(facts.definitions)
    kept = keep_plan(facts, graph, None)
    calm = _later(facts, moved=0)
    moved = _later(facts, moved=options.topics // 100)
    gc.collect()
    # Nothing in it waits, so the processor's time is all there is, whoever else is at work.
    clock = time.process_time
    bare = _milliseconds(lambda: [facts.offsets[d.topic].last for d in facts.ordered], 5, clock)
    works: dict[str, Callable[[], object]] = {
        "all anew": lambda: make_plan(facts),
        "nothing moved": lambda: keep_plan(calm, graph, kept),
        "1 % moved": lambda: keep_plan(moved, graph, kept),
    }
    found = {name: _milliseconds(work, 5, clock) for name, work in works.items()}
    lines = [(options.topics, name, bare, mine, mine / bare) for name, mine in found.items()]
    print_table(("topics", "plan", "walked ms", "planned ms", "ratio"), lines, empty="")
    judge("plan with 1 % moved, ms", found["1 % moved"], 50)


def _later(facts: Facts, moved: int) -> Facts:
    """Let a second pass, in which some topics come a little further."""
    offsets = dict(facts.offsets)
    for topic in Random(2).sample(sorted(offsets), moved):
        last = offsets[topic].last
        offsets[topic] = replace(offsets[topic], last=Position(last.pos + 1, 0), run=facts.now)
    now = facts.now + SECOND
    looks = {table: look.again(now) for table, look in facts.looks.items()}
    return replace(facts, now=now, looks=looks, offsets=offsets)


def _facts(topics: int) -> Facts:
    random, now = Random(1), 1_700_000_000_000
    definitions: dict[str, TableDefinition] = {}
    offsets: dict[str, Offset] = {}
    looks: dict[str, Look] = {}
    ahead: dict[str, Ahead] = {}
    for number in range(topics):
        chain, level = divmod(number, 5)
        topic = f"fact.t{chain}_{level}"
        base = f"fact.t{chain}_{level - 1}" if level else f"stage.s{chain}"
        if not level:
            newest = Position(now - random.randrange(HOUR), 0)
            looks[base] = Look(base, now, newest=newest, version=3, data_version=3)
        definitions[topic] = TableDefinition(topic, Processor.STEP, (base,), delay=1000)
        last = Position(now - HOUR - random.randrange(HOUR), 0)
        offsets[topic] = Offset(topic, last, seq=4, run=now - random.randrange(2 * HOUR))
        ahead[topic] = Ahead(last.pos + random.randrange(HOUR), 10)
    facts = Facts(definitions, offsets, looks, now, ahead)
    return replace(facts, ordered=order(definitions.values()))


def _milliseconds(
    work: Callable[[], object],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> float:
    work()
    spent = []
    for _ in range(repeats):
        before()
        begin = clock()
        work()
        spent.append(clock() - begin)
    return statistics.median(spent) * 1000
