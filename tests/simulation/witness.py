"""Looks on after every event, and holds what happened against what was promised.

I1 a table equals its source up to `last` · I2 `last` only grows, a declared block never changes
I3 each execution has one end · I4 each failed row is exactly one of written, waiting, dead
I5 no write of a lower term after a higher one · I8 work goes on when faults stop (in `play`)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tests.kinds.counting import CountDefinition
from tests.property.lake import Row, Table, transformed
from tidegate.model.entities import FailedState
from tidegate.model.position import START, Position
from tidegate.tables.definition import Processor, TableDefinition

from .database import Database
from .ledger import Ledger
from .sea import Sea

TRIGGERS = (
    """CREATE TRIGGER saw_back AFTER UPDATE ON offsets
       WHEN (NEW.last_pos, NEW.last_id) < (OLD.last_pos, OLD.last_id)
       BEGIN SELECT saw('I2', NEW.topic || ' went back'); END""",
    """CREATE TRIGGER saw_next AFTER UPDATE ON offsets
       WHEN OLD.next_pos IS NOT NULL AND OLD.block_seq = NEW.block_seq
        AND (OLD.next_pos, OLD.next_id) <> (NEW.next_pos, NEW.next_id)
       BEGIN SELECT saw('I2', 'the declared end of ' || NEW.topic || ' changed'); END""",
    """CREATE TRIGGER saw_forgotten AFTER UPDATE ON offsets
       WHEN OLD.next_pos IS NOT NULL AND NEW.next_pos IS NULL
        AND (OLD.next_pos, OLD.next_id) <> (NEW.last_pos, NEW.last_id)
       BEGIN SELECT saw('I2', 'a declared block of ' || NEW.topic || ' was forgotten'); END""",
    """CREATE TRIGGER saw_marker AFTER UPDATE ON offsets
       WHEN OLD.last_marker IS NOT NEW.last_marker
       BEGIN SELECT marked(NEW.topic, OLD.last_marker, NEW.last_marker); END""",
    """CREATE TRIGGER saw_marked_forgotten AFTER UPDATE ON offsets
       WHEN OLD.next_marker IS NOT NULL AND OLD.next_marker IS NOT NEW.next_marker
        AND OLD.next_marker IS NOT NEW.last_marker
       BEGIN SELECT saw('I2', 'a declared block of ' || NEW.topic || ' was forgotten'); END""",
    """CREATE TRIGGER saw_declared AFTER UPDATE ON offsets WHEN NEW.next_pos IS NOT NULL
       BEGIN SELECT declared(NEW.topic, NEW.block_seq, json_array(
        NEW.block_last_pos, NEW.block_last_id, NEW.block_last_marker,
        NEW.next_pos, NEW.next_id, NEW.next_marker)); END""",
    """CREATE TRIGGER saw_arrived AFTER UPDATE ON offsets WHEN NEW.complete_to <> OLD.complete_to
       BEGIN SELECT arrived(NEW.topic); END""",
    """CREATE TRIGGER saw_moved AFTER UPDATE OF seq ON offsets WHEN NEW.seq <> OLD.seq
       BEGIN SELECT moved(NEW.topic); END""",
    """CREATE TRIGGER saw_end AFTER UPDATE ON etl_executions
       WHEN OLD.finished_at IS NOT NULL
        AND (OLD.state, OLD.finished_at) IS NOT (NEW.state, NEW.finished_at)
       BEGIN SELECT saw('I3', NEW.id || ' was ' || OLD.state || ', is ' || NEW.state); END""",
    """CREATE TRIGGER saw_gone AFTER DELETE ON etl_executions
       BEGIN SELECT saw('I3', OLD.id || ' is gone'); END""",
    """CREATE TRIGGER saw_told AFTER UPDATE ON etl_executions
       WHEN OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL
       BEGIN SELECT ended(NEW.id, NEW.topic, NEW.state, NEW.comment); END""",
)


class Witness:
    """What was seen of one play."""

    def __init__(
        self,
        database: Database,
        sea: Sea,
        definitions: Mapping[str, TableDefinition],
        counts: Sequence[CountDefinition],
        tell: Callable[[str], None],
    ) -> None:
        self._database = database
        self._sea = sea
        self._definitions = definitions
        self._ledgers = {one.name: Ledger(database, sea, one, self._break) for one in counts}
        self._tell = tell
        self._seen: list[str] = []
        self._moved: list[str] = []
        self._ends: list[str] = []
        self._marks: list[tuple[str, str | None, str | None]] = []
        self._arrived: list[str] = []
        self._blocks: dict[tuple[str, int], str] = {}
        """The bounds of every block that was ever declared, by its flow and number."""
        self._declared: list[tuple[str, int, str]] = []
        self._terms: list[int] = []
        self.broken: str | None = None
        database.define("saw", 2, lambda what, detail: self._seen.append(f"{what}: {detail}"))
        database.define("moved", 1, self._moved.append)
        database.define("ended", 4, self._note_end)
        database.define("marked", 3, lambda *mark: self._marks.append(mark))
        database.define("arrived", 1, self._arrived.append)
        database.define("declared", 3, lambda *block: self._declared.append(block))
        database.on_commit.append(self._after_commit)
        database.on_rollback.append(self._after_rollback)
        sea.on_write.append(self._after_write)
        sea.on_clash = lambda what: self._break(f"I1: {what}")

    @property
    def satisfied(self) -> bool:
        return self.broken is None

    def leader_writes(self, term: int | None) -> None:
        """Note the term that the transaction at hand is written under."""
        if term is not None:
            self._terms.append(term)

    def _note_end(self, id: str, topic: str, state: str, comment: str) -> None:
        self._ends.append(f"execution {id[:8]}…{id[-4:]} of {topic or 'nobody'} {state} {comment}")

    def _after_rollback(self) -> None:
        self._seen.clear()
        self._moved.clear()
        self._ends.clear()
        self._terms.clear()
        self._marks.clear()
        self._arrived.clear()
        self._declared.clear()

    def _after_commit(self) -> None:
        for end in self._ends:
            self._tell(end)
        if self._seen:
            self._break(self._seen[0])
        if self._terms:
            ((now,),) = self._database.ask("SELECT term FROM leadership")
            if min(self._terms) < now:
                self._break(f"I5: term {min(self._terms)} wrote in term {now}")
        for topic, seq, bounds in self._declared:
            if self._blocks.setdefault((topic, seq), bounds) != bounds:
                self._break(f"I2: block {seq} of {topic} was declared anew, as {bounds}")
        for topic, *mark in self._marks:
            self._ledgers[topic].marked(*mark)
        for topic in self._moved:
            ledger = self._ledgers.get(topic)
            self._tell(f"{topic} moves to {ledger.marker if ledger else self._last(topic)}")
            self._check(topic)
        for ledger in self._ledgers.values():
            if ledger.table in self._arrived and ledger.name not in self._moved:
                self._break(f"I1: {ledger.table} is landed further, and {ledger.name} did not move")
        self._after_rollback()

    def _after_write(self, topic: str) -> None:
        if topic in self._ledgers:
            ledger = self._ledgers[topic]
            self._tell(f"{topic} lands in {ledger.table}")
            ledger.written()
            return
        definition = self._definitions[topic]
        doubled = [row for row, times in self._of(definition).items() if times > 1]
        self._tell(f"{topic} is written, {self._sea.tables[definition.table].version}")
        if doubled:
            self._break(f"I1: {definition.table} holds {doubled[0]} twice")

    def _break(self, what: str) -> None:
        if self.broken is None:
            self.broken = what
            self._tell(f"BROKEN {what}")

    def _check(self, topic: str) -> None:
        """I1 and I4, for a flow that has just moved."""
        if topic in self._ledgers:
            self._ledgers[topic].moved(arrived=self._ledgers[topic].table in self._arrived)
            return
        definition = self._definitions.get(topic)
        if definition is None or definition.processor is not Processor.STEP:
            return
        last, base = self._last(topic), self._rows(definition.base)
        wanted = transformed(definition, (row for row in base if row.at <= last))
        found, aside = self._of(definition), self._failing(topic)
        both = [row for row in found if row.key in aside]
        if both:
            self._break(f"I4: {both[0]} is in {definition.table} and set aside")
        for row in wanted:
            if row not in found and row.key not in aside:
                self._break(f"I1: {definition.table} lacks {row}")
                return
        if sum(found.values()) + len(aside) != len(wanted):
            self._break(f"I1: {definition.table} holds rows beyond {last}")

    def wants(self, definition: CountDefinition) -> None:
        """Know that another definition of a flow that counts is applied."""
        self._ledgers[definition.name].wants(definition)

    def _last(self, topic: str) -> Position:
        found = self._database.ask("SELECT last_pos, last_id FROM offsets WHERE topic = ?", topic)
        return Position(*found[0]) if found else START

    def _failing(self, topic: str) -> set[str]:
        rows = self._database.ask(
            "SELECT entity FROM failed_rows WHERE topic = ? AND state IN (?, ?)",
            topic,
            FailedState.WAITING.value,
            FailedState.DEAD.value,
        )
        return {json.loads(entity)["key"] for (entity,) in rows}

    def _rows(self, table: str) -> list[Row]:
        return self._sea.tables.get(table, Table()).rows()

    def _of(self, definition: TableDefinition) -> Counter[Row]:
        return Counter(row for row in self._rows(definition.table) if row.topic == definition.topic)

    # At the end

    def unfinished(self) -> Sequence[str]:
        """Say what is not done yet: rows that are under way, work that is open."""
        found = [
            f"{topic} is at {self._last(topic)}"
            for topic, definition in self._definitions.items()
            if definition.processor is Processor.STEP and not self._is_complete(definition)
        ]
        for ledger in self._ledgers.values():
            found += ledger.unfinished()
        open = self._database.ask(
            "SELECT id, topic, state FROM etl_executions WHERE finished_at IS NULL"
        )
        found += [f"execution {id} of {topic} is {state}" for id, topic, state in open]
        held = self._database.ask("SELECT topic, hostid FROM offsets WHERE hostid <> ''")
        return [*found, *(f"{topic} is held by {hostid}" for topic, hostid in held)]

    def _is_complete(self, definition: TableDefinition) -> bool:
        found, aside = self._of(definition), self._failing(definition.topic)
        wanted = Counter(self._all_rows(definition))
        lacking = wanted - found
        return not (found - wanted) and all(row.key in aside for row in lacking)

    def _all_rows(self, definition: TableDefinition) -> list[Row]:
        """Give what a table must hold in the end, by one pass over all that was landed."""
        built = [d for d in self._definitions.values() if d.table == definition.base]
        steps = [d for d in built if d.processor is Processor.STEP]
        if not steps:
            return transformed(definition, self._rows(definition.base))
        return transformed(definition, (row for d in steps for row in self._all_rows(d)))
