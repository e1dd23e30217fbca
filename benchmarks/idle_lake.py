"""A lake without files and loads that do nothing: what is left is the control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.model.execution import Execution, Outcome
from tidegate.model.flow import Operation
from tidegate.model.looks import Ahead, Look
from tidegate.model.position import Offset, Position
from tidegate.ports.outside import Recorded, Runtime
from tidegate.ports.store import Store
from tidegate.tables.block_finder import Found
from tidegate.tables.care import Care, Chores
from tidegate.tables.definition import TableDefinition
from tidegate.tables.runner import Load, TableRunner


class IdleLake:
    """Implements `Lake` and `Loads`: there always is one more row to take."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._newest = Position(runtime.now(), 0)
        self._written: dict[str, int] = {}

    def look(self, table: str, *_columns: str, data_version: bool = False) -> Look:
        at, version = self._runtime.now(), 1 if data_version else -1
        return Look(table, at, newest=self._newest, version=1, data_version=version)

    def ahead(self, _table: str, _pos: str, _id: str, last: Position) -> Ahead:
        return Ahead(last.pos + 1, 1)

    def versions(self, tables: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(tables, 1)

    def recorded(self, _table: str, writer: str) -> Recorded:
        return Recorded(self._written.get(writer, 0))

    def require_there(self) -> None: ...

    def find_block(
        self, _definition: TableDefinition, last: Position, _frontier: Position, _bound: int
    ) -> Found | None:
        return Found(Position(last.pos + 1, 0), 1, full=True)

    def drop(self, table: str) -> None: ...

    def run(self, load: Load) -> Outcome:
        self._written[load.execution.topic] = load.block.seq
        return Outcome(load.block.rows)

    def interrupt(self, execution_id: str) -> None: ...


class IdleCaretaker:
    """Implements `Caretaker`: a table without files needs nothing."""

    def chores(self, _table: str, _offset: Offset) -> Chores:
        return Chores()

    def run(self, _table: str, _chores: Chores, _pins: Sequence[int]) -> Care:
        return Care("")


class IdleRunner(TableRunner):
    """Runs the blocks of tables as ever, but loads nothing."""

    def __init__(self, store: Store, lake: IdleLake, runtime: Runtime) -> None:
        super().__init__(store, lake, lake, lake, IdleCaretaker(), runtime)

    def follow_up(self, _ended: Execution) -> Operation | None:
        # There is no table to look after, so not even its topic is looked at.
        return None
