"""Rows of `etl_instances`: how they are read and written, and how an execution moves a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, update

from tidegate.model.instance import Instance, InstanceStatus
from tidegate.model.messages import InstanceState
from tidegate.store.schema import etl_instances
from tidegate.store.statement import Statement

_SET_STATE = Statement(
    update(etl_instances)
    .where(etl_instances.c.instance_id == bindparam("on_instance"))
    .values(state=bindparam("now_state"))
)


def set_state(connection: Connection, instance: str, state: InstanceState) -> None:
    """Let an instance's state change with its execution, without waiting for its heartbeat."""
    _SET_STATE.run(connection, {"on_instance": instance, "now_state": state.value})


def instance_of(row: Mapping[Any, Any]) -> Instance:
    return Instance(
        id=row["instance_id"],
        status=InstanceStatus(row["status"]),
        state=InstanceState(row["state"]),
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        process=row["process"],
        kinds=tuple(row["kinds"]),
        tags=tuple(row["tags"]),
        disabled=row["disabled"],
        reported_at=row["reported_at"],
        started_at=row["started_at"],
        status_updated_at=row["status_updated_at"],
    )


def columns_of(instance: Instance, at: int) -> dict[str, Any]:
    """Give every column of an instance that is first known of now."""
    return {
        "instance_id": instance.id,
        "name": instance.name,
        "host": instance.host,
        "pid": instance.pid,
        "process": instance.process,
        "kinds": list(instance.kinds),
        "tags": list(instance.tags),
        "state": instance.state.value,
        "status": InstanceStatus.ALIVE.value,
        "disabled": instance.disabled,
        "reported_at": instance.reported_at,
        "started_at": at,
        "status_updated_at": at,
        "created_at": at,
        "updated_at": at,
    }
