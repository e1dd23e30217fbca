"""What people want of flows: paused, run now. Each wish is an event in the flow's log, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from tidegate.model.entities import operator_action
from tidegate.ports import Wish
from tidegate.store.datasets import append
from tidegate.store.dialect import insert_into
from tidegate.store.reader import Reader
from tidegate.store.schema import flow_wishes
from tidegate.store.writer import Writer

_COLUMNS = flow_wishes.c
_NOTHING: Mapping[str, Any] = {
    "paused_at": None,
    "paused_by": "",
    "paused_why": "",
    "run_asked_at": None,
}


class SqlWishes:
    """Implements `ports.Wishes`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def all(self) -> Mapping[str, Wish]:
        return {
            row["flow_id"]: Wish(
                row["paused_at"], row["paused_by"], row["paused_why"], row["run_asked_at"]
            )
            for row in self._reader.rows(select(flow_wishes))
        }

    def pause(self, flow: str, by: str, why: str, at: int) -> None:
        wish = {"paused_at": at, "paused_by": by, "paused_why": why}
        self._change([flow], wish, by, f"pause{': ' + why if why else ''}", at)

    def unpause(self, flow: str, by: str, at: int) -> None:
        wish = {"paused_at": None, "paused_by": "", "paused_why": ""}
        self._change([flow], wish, by, "resume", at)

    def ask_to_run(self, flows: Sequence[str], by: str, at: int) -> None:
        self._change(flows, {"run_asked_at": at}, by, "run now", at)

    def note(self, flow: str, by: str, what: str, at: int) -> None:
        """Keep an action by hand that changed something else than a wish."""
        self._writer.write(
            lambda connection: _noted(connection, flow, by, what, at),
        )

    def _change(
        self, flows: Sequence[str], wish: Mapping[str, Any], by: str, what: str, at: int
    ) -> None:
        def write(connection: Connection) -> None:
            statement = insert_into(connection.dialect.name, flow_wishes)
            changed = {**wish, "updated_at": at}
            for flow in sorted(flows):
                connection.execute(
                    statement.values(
                        flow_id=flow, **{**_NOTHING, **changed, "created_at": at}
                    ).on_conflict_do_update(index_elements=[_COLUMNS.flow_id], set_=changed)
                )
                _noted(connection, flow, by, what, at)

        self._writer.write(write)


def _noted(connection: Connection, flow: str, by: str, what: str, at: int) -> None:
    append(connection, flow, [operator_action(flow, by, what, at)], at)
