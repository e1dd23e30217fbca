"""Landed tables: what the store remembers of one after a look at it."""

from __future__ import annotations

from dataclasses import replace

from tidegate.model.execution import Offset, OffsetState
from tidegate.model.facts import Look
from tidegate.model.position import START

_SOURCE = "source"


def after_look(known: Offset | None, look: Look) -> Offset | None:
    """Give the row of a landed table after a look; None when the look changes nothing."""
    if not look.exists:
        return None
    before = known or Offset(look.table, START)
    versions = {look.table: look.version}
    last = before.last if look.newest is None else max(before.last, look.newest)
    seen = before.last == last and before.versions == versions
    if seen and before.processor == _SOURCE and before.state is OffsetState.DONE:
        return None
    return replace(before, last=last, versions=versions, processor=_SOURCE, state=OffsetState.DONE)
