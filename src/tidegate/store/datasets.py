"""Task execution datasets: each entity at a place of its own, given out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, func, insert, select
from sqlalchemy.sql.dml import ReturningInsert

from tidegate.store.dialect import insert_into
from tidegate.store.reader import Reader
from tidegate.store.schema import dataset_entities, datasets
from tidegate.store.statement import Statement

_ENTITY_AT = Statement(
    select(dataset_entities.c.entity).where(
        dataset_entities.c.flow_id == bindparam("on_flow"),
        dataset_entities.c.location == bindparam("on_location"),
    )
)
_APPEND = Statement(insert(dataset_entities))


def _counting_on(dialect: str) -> ReturningInsert[int]:
    """Build the statement that begins a counter or moves it on, and tells where it then stands."""
    statement = insert_into(dialect, datasets)
    new, next_location = statement.excluded, datasets.c.next_location
    return statement.on_conflict_do_update(
        index_elements=[datasets.c.flow_id],
        set_={"next_location": next_location + new.next_location, "updated_at": new.updated_at},
    ).returning(next_location)


_COUNT_ON = Statement(_counting_on)


class SqlDatasets:
    """Implements `ports.Datasets`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def flows(self) -> Sequence[str]:
        rows = self._reader.rows(select(datasets.c.flow_id).order_by(datasets.c.flow_id))
        return [row["flow_id"] for row in rows]

    def entities(
        self, flow: str, *, since: int = 0, limit: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        rows = self._reader.rows(
            select(dataset_entities.c.location, dataset_entities.c.entity)
            .where(dataset_entities.c.flow_id == flow, dataset_entities.c.location >= since)
            .order_by(dataset_entities.c.location)
            .limit(limit)
        )
        return [_located(row) for row in rows]

    def latest(self, flow: str) -> Sequence[Mapping[str, Any]]:
        newest = (
            select(func.max(dataset_entities.c.location))
            .where(dataset_entities.c.flow_id == flow)
            .group_by(dataset_entities.c.entity_id)
        )
        rows = self._reader.rows(
            select(dataset_entities.c.location, dataset_entities.c.entity)
            .where(dataset_entities.c.flow_id == flow, dataset_entities.c.location.in_(newest))
            .order_by(dataset_entities.c.location)
        )
        return [_located(row) for row in rows]


def append(
    connection: Connection, flow: str, entities: Sequence[Mapping[str, Any]], at: int
) -> int:
    """Append entities to a flow's dataset and give the location of the first."""
    first = _take_locations(connection, flow, len(entities), at)
    _APPEND.run_many(
        connection,
        [
            {
                "flow_id": flow,
                "location": location,
                "entity_id": entity["_id"],
                "event_type": entity.get("event_type"),
                "at": at,
                "entity": dict(entity),
                "created_at": at,
                "updated_at": at,
            }
            for location, entity in enumerate(entities, first)
        ],
    )
    return first


def entity_at(connection: Connection, flow: str, location: int) -> Mapping[str, Any]:
    """Give an entity as it was appended."""
    place = {"on_flow": flow, "on_location": location}
    entity: Mapping[str, Any] = _ENTITY_AT.scalar(connection, place)
    return entity


def _take_locations(connection: Connection, flow: str, count: int, at: int) -> int:
    """Move the flow's counter on; the row stays locked until the entities are committed."""
    counter = {"flow_id": flow, "next_location": count, "created_at": at, "updated_at": at}
    moved: int = _COUNT_ON.scalar(connection, counter)
    return moved - count


def _located(row: RowMapping) -> Mapping[str, Any]:
    return {**row["entity"], "_location": row["location"]}
