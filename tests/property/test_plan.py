"""C and F, as time and data go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.position import START, Offset, Position
from tidegate.tables.definition import Processor, TableDefinition
from tidegate.tables.plan import Facts, Plan, make_plan

from .lake import ModelLake, Row, Table, World
from .profile import examples
from .scenarios import BEGIN, Scenario, scenarios


class Planning:
    """Plans over a lake whose tables others fill; topics take blocks without store or executor."""

    def __init__(self, scenario: Scenario) -> None:
        # A Reload's C is known again only after its next load; here nothing loads.
        self.definitions = {
            d.topic: d for d in scenario.definitions if d.processor is not Processor.RELOAD
        }
        arrivals = [arrival for source in scenario.sources for arrival in source.arrivals]
        self.world = World(BEGIN, arrivals, scenario.kinds)
        for source in scenario.sources:
            self.world.tables[source.table] = Table(positioned=source.positioned)
        self.lake = ModelLake(self.world)
        self.offsets: dict[str, Offset] = {}

    def plan(self) -> Plan:
        landed = [d.table for d in self.definitions.values() if d.processor is Processor.SOURCE]
        steps = [d for d in self.definitions.values() if d.processor is Processor.STEP]
        tables = {name for d in steps for name in d.depends_on} | set(landed)
        facts = Facts(
            self.definitions,
            self.offsets,
            {name: self.lake.look(name, "pos", "id") for name in sorted(tables)},
            self.world.now,
            ahead={
                d.topic: self.lake.ahead(d.base, "pos", "id", self.offset(d.topic).last)
                for d in steps
            },
            eager=True,
        )
        return make_plan(facts)

    def offset(self, topic: str) -> Offset:
        return self.offsets.get(topic) or Offset(topic, START)

    def take(self, definition: TableDefinition, plan: Plan) -> None:
        """Take a block, if one is due, the way that a Step would."""
        verdict, before = plan.verdicts[definition.topic], self.offset(definition.topic)
        if not verdict.due or verdict.limits is None:
            return
        limits = verdict.limits
        found = self.lake.find_block(definition, before.last, limits.frontier, limits.bound)
        end, complete_to = before.last, limits.complete_to
        if found is not None:
            end = found.next
            complete_to = end.pos if found.full else limits.complete_to
            base = self.world.tables[definition.base].rows()
            self.world.land(definition.table, _block(base, before.last, end))
        self.offsets[definition.topic] = Offset(
            definition.topic,
            end,
            seq=before.seq + (found is not None),
            complete_to=max(before.complete_to, complete_to),
            run=self.world.now,
        )


def _block(rows: list[Row], last: Position, next: Position) -> list[Row]:
    return [row for row in rows if last < row.at <= next]


@given(
    scenarios(deadly=False),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 7)), max_size=20),
)
@examples(100)
def test_neither_falls(scenario: Scenario, moves: list[tuple[int, int]]) -> None:
    planning = Planning(scenario)
    steps = [d for d in planning.definitions.values() if d.processor is Processor.STEP]
    known = planning.plan()
    for wait, number in moves:
        planning.world.advance(wait)
        plan = planning.plan()
        for table, state in plan.tables.items():
            assert state.complete_to >= known.tables[table].complete_to, table
            assert state.frontier >= known.tables[table].frontier, table
            assert state.complete_to <= planning.world.now
        known = plan
        if steps:
            planning.take(steps[number % len(steps)], plan)


@given(scenarios(deadly=False))
@examples(60)
def test_every_topic_that_is_not_due_says_why_and_its_chain_ends(scenario: Scenario) -> None:
    planning = Planning(scenario)
    planning.world.advance(40)
    plan = planning.plan()
    for topic, verdict in plan.verdicts.items():
        assert verdict.why
        assert verdict.due == verdict.why.startswith("due: ")
        chain = plan.chain(topic)
        assert chain[0] == topic
        assert len(chain) == len(set(chain))
        # The last of them is held back by nothing but time, or is nobody's topic.
        last = plan.verdicts.get(chain[-1])
        assert last is None or last.held_back_by is None
