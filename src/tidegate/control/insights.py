"""What there is to see of a project: one read-only view, from which commands, API and pages print.

Every row is what `--json` prints: times in RFC 3339, positions as integers, names as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tidegate.errors import UnknownName
from tidegate.model.entities import FailedState
from tidegate.model.execution import Execution, ExecutionState, Stream
from tidegate.model.instances import Instance, InstanceStatus
from tidegate.model.messages import InstanceState
from tidegate.model.position import START, Offset, OffsetState, Position, rfc3339
from tidegate.ports.kinds import Link, Planner, Verdict
from tidegate.ports.store import LogRow, Store

Row = dict[str, Any]
_NOBODY_YET = "waits for an instance"


class Insights:
    """Looks at the store, and at the plan of every kind; writes nothing."""

    def __init__(self, store: Store, planners: Callable[[], Sequence[Planner]], lease: int) -> None:
        self._store = store
        self._planners = planners
        """Makes what plans each kind, as of now."""
        self._lease = lease

    def flows(self) -> list[Row]:
        """Give a row for every flow: how far it is, how far behind, and why."""
        offsets, failed = self._store.offsets.all(), self._store.failures.counts()
        return [
            _flow_row(planner, verdict, offsets.get(flow), failed.get(flow, {}))
            for planner in self._planners()
            for flow, verdict in planner.verdicts(eager=False).items()
        ]

    def why(self, flow: str) -> Row:
        """Say why a flow is not fresher, down to what is at fault; raises UnknownName."""
        judged = [(one, one.verdicts(eager=False)) for one in self._planners()]
        for planner, verdicts in judged:
            if flow in verdicts:
                verdict = verdicts[flow]
                chain = self._chain(flow, planner, [one for one, _ in judged])
                rows = [_link_row(link, planner.as_of) for link in chain]
                return {"topic": flow, "due": verdict.due, "why": verdict.why, "chain": rows}
        names = ", ".join(name for _, verdicts in judged for name in verdicts) or "none"
        raise UnknownName(f"there is no topic {flow!r} to build; there are: {names}")

    def _chain(self, flow: str, planner: Planner, planners: Sequence[Planner]) -> Sequence[Link]:
        """Follow what holds a flow back, through a landed table to the flow that lands it."""
        chain = list(planner.chain(flow))
        landers = {
            applied.definition.flow.lane: id
            for id, applied in self._store.definitions.current().items()
        }
        while (lander := landers.get(chain[-1].name)) is not None:
            known = {link.name for link in chain}
            of_it = (link for one in planners for link in one.chain(lander))
            further = [link for link in of_it if link.name not in known]
            if not further:
                break
            chain += further
        return chain

    def status(self) -> Row:
        """Say who leads, who works on what, and what waits for a person."""
        lease = self._store.leadership.read()
        leader = {
            "holder": lease.holder,
            "term": lease.term,
            "since": rfc3339(lease.elected_at),
            "expires_at": rfc3339(lease.expires_at),
        }
        open = self._store.executions.open()
        return {
            "leader": leader if lease.established(self._lease) else None,
            "instances": _counts(self._store.instances.all()),
            "running": {one.topic or one.id: one.etl_worker or _NOBODY_YET for one in open},
            "stopped": {**self._stopped(), **self._paused()},
            "rejected_messages": sum(self._store.rejected.totals().values()),
        }

    def _stopped(self) -> Mapping[str, str]:
        return {
            flow: offset.reason
            for flow, offset in self._store.offsets.all().items()
            if offset.state is OffsetState.STOPPED
        }

    def _paused(self) -> Mapping[str, str]:
        return {
            flow: f"paused by {control.paused_by}"
            + (f": {control.paused_why}" if control.paused_why else "")
            for flow, control in self._store.controls.all().items()
            if control.paused_at is not None
        }

    def instances(self) -> list[Row]:
        """Give the rows of `etl_instances`."""
        return [_instance_row(one) for one in self._store.instances.all()]

    def executions(
        self, *, flow: str | None, state: ExecutionState | None, limit: int | None
    ) -> list[Row]:
        """Give the rows of `etl_executions`, newest first."""
        found = self._store.executions.list(flow=flow, state=state, limit=limit)
        return [_execution_row(one) for one in found]

    def execution(self, id: str) -> Row:
        """Give one execution with its streams; raises UnknownName."""
        one = self._store.executions.get(id)
        if one is None:
            raise UnknownName(f"there is no execution {id}")
        streams = self._store.phases.of(id)
        return {**_execution_row(one), "phases": [_stream_row(stream) for stream in streams]}

    def offsets(self, flow: str | None = None) -> list[Row]:
        """Give the rows of `offsets`: those of flows, and of the tables they were seen to read."""
        found = sorted(self._store.offsets.all().items())
        return [offset_row(offset) for name, offset in found if flow in (None, name)]

    def etl_log(self, flow: str | None, *, limit: int | None) -> list[Row]:
        """Give the rows of `etl_log`, newest first."""
        return [_log_row(row) for row in self._store.journal.etl_log(flow, limit=limit)]


def _flow_row(
    planner: Planner,
    verdict: Verdict,
    offset: Offset[Any] | None,
    failed: Mapping[FailedState, int],
) -> Row:
    at = offset or Offset(verdict.topic, START)
    return {
        "topic": verdict.topic,
        "processor": planner.processor(verdict.topic),
        "state": at.state.value,
        "due": verdict.due,
        "last": _shown(at.last),
        "next": None if at.next is None else _shown(at.next),
        "complete_to": _reached(verdict.complete_to),
        "lag_seconds": _seconds_behind(planner.as_of, verdict.complete_to),
        "rows": at.rows,
        "run": _time(at.run),
        "hostid": at.hostid,
        "waiting": failed.get(FailedState.WAITING, 0),
        "dead": failed.get(FailedState.DEAD, 0),
        "stale": at.stale,
        "held_back_by": verdict.held_back_by,
        "why": verdict.why,
    }


def _shown(at: Position | Mapping[str, Any]) -> Any:
    """Give a position as a pair of integers; a flow's own marker is an object."""
    return list(at) if isinstance(at, Position) else dict(at)


def _link_row(link: Link, as_of: int) -> Row:
    return {
        "topic": link.name,
        "complete_to": _reached(link.complete_to),
        "behind_seconds": _seconds_behind(as_of, link.complete_to),
        "why": link.why,
    }


def _counts(fleet: Sequence[Instance]) -> Row:
    working = [one for one in fleet if one.works]
    return {
        "idle": sum(one.state is InstanceState.IDLE for one in working),
        "busy": sum(one.state is InstanceState.BUSY for one in working),
        "disabled": sum(one.disabled and one.status is InstanceStatus.ALIVE for one in fleet),
        "closing": sum(one.status is InstanceStatus.CLOSING for one in fleet),
        "dead": sum(one.status is InstanceStatus.DEAD for one in fleet),
    }


def _instance_row(instance: Instance) -> Row:
    row = asdict(instance)
    row["instance_id"] = row.pop("id")
    row["kinds"], row["tags"] = list(instance.kinds), list(instance.tags)
    row["status"], row["state"] = instance.status.value, instance.state.value
    return _with_times(row)


def _execution_row(execution: Execution) -> Row:
    row = asdict(execution)
    row["state"] = execution.state.value
    return _with_times(row)


def _stream_row(stream: Stream) -> Row:
    return {
        "phase": stream.phase,
        "data_stream_name": stream.name,
        "instance_id": stream.instance_id,
        "stream_started_at": _time(stream.started_at),
        "stream_finished_at": _time(stream.finished_at),
        "stream_failed_at": _time(stream.failed_at),
        "comment": stream.comment,
        "total_in_messages": stream.total_in,
        "total_out_messages": stream.total_out,
        "total_failed_messages": stream.total_failed,
    }


def offset_row(offset: Offset[Any]) -> Row:
    """Give one row of `offsets`; a flow with a marker of its own has that beside the pair."""
    return {
        "topic": offset.topic,
        **_bound("last", offset.last),
        "rows": offset.rows,
        **_bound("next", offset.next),
        "run": _reached(offset.run or 0),
        "processor": offset.processor,
        "state": offset.state.value,
        "hostid": offset.hostid,
        "execution_id": offset.execution_id,
        "claimed_at": _reached(offset.claimed_at or 0),
        "seq": offset.seq,
        "complete_to": _reached(offset.complete_to),
        "failures": offset.failures,
        "reason": offset.reason,
        "stale": offset.stale,
        "versions": dict(offset.versions),
    }


def _bound(name: str, at: Position | Mapping[str, Any] | None) -> Row:
    if at is None or isinstance(at, Position):
        pos, id = at or (None, None)
        return {f"{name}_pos": pos, f"{name}_id": id}
    return {f"{name}_pos": None, f"{name}_id": None, f"{name}_marker": dict(at)}


def _log_row(row: LogRow) -> Row:
    seen = row.measures
    return {
        "topic": row.topic,
        "ts": _time(row.ts),
        "rows": seen.rows,
        "max_id": seen.max_id,
        "min_ts": _time(seen.min_ts),
        "max_ts": _time(seen.max_ts),
        "max_lag": row.max_lag,
        "nulls": dict(seen.nulls) if seen.nulls is not None else None,
        "figures": dict(seen.figures) if seen.figures is not None else None,
        "query_id": seen.query_id,
        "execution_id": row.execution_id,
    }


def _with_times(row: Row) -> Row:
    return {name: _time(value) if name.endswith("_at") else value for name, value in row.items()}


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else rfc3339(milliseconds)


def _reached(milliseconds: int) -> str | None:
    """Give a time that is 0 until it is known."""
    return rfc3339(milliseconds) if milliseconds > 0 else None


def _seconds_behind(as_of: int, complete_to: int) -> float | None:
    """Give the lag; a flow that never had a row has none that could be told."""
    return max(0, as_of - complete_to) / 1000 if complete_to > 0 else None
