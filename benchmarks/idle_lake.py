"""A lake without files and a runner that does nothing: what is left is the control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.model.blocks import Found
from tidegate.model.execution import Outcome, Work
from tidegate.model.facts import Ahead, Look
from tidegate.model.lineage import Definition
from tidegate.model.position import Position
from tidegate.ports import Recorded, Runtime


class IdleLake:
    """Implements `ports.Lake` and `ports.Runner`: there always is one more row to take."""

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

    def recorded(self, definition: Definition) -> Recorded:
        return Recorded(self._written.get(definition.topic, 0))

    def find_block(
        self, _definition: Definition, last: Position, _frontier: Position, _bound: int
    ) -> Found | None:
        return Found(Position(last.pos + 1, 0), 1, full=True)

    def drop(self, table: str) -> None: ...

    def run(self, work: Work) -> Outcome:
        self._written[work.execution.topic] = work.block.seq
        return Outcome(work.block.rows, None, None)

    def interrupt(self, execution_id: str) -> None: ...
