"""Selectors of flows, as people type them: `fact.orders`, `fact.*`, `+fact.orders` and so on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.output import known_topic

if TYPE_CHECKING:
    from tidegate.wiring import Parts


Selectors = Annotated[
    list[str],
    typer.Argument(
        metavar="SELECT...", help="Flows: fact.orders, fact.*, +fact.orders, and so on."
    ),
]


@dataclass(frozen=True)
class Selected:
    """The flows that selectors mean."""

    flows: tuple[str, ...]
    named: frozenset[str]
    """Those that a selector means alone: whoever names one flow wants to hear that it does not fit.
    The others are passed over then."""

    def fitting(self, fits: Iterable[str]) -> list[str]:
        """Give those of the flows that fit."""
        some = set(fits)
        return [flow for flow in self.flows if flow in some]


def selected(parts: Parts, selectors: Sequence[str]) -> Selected:
    """Resolve selectors over the flows of every kind; one that finds nothing raises UnknownName."""
    flows: dict[str, None] = {}
    named: set[str] = set()
    for selector in selectors:
        found = _meant(parts, selector)
        flows |= dict.fromkeys(found)
        if len(found) == 1:
            named.update(found)
    return Selected(tuple(flows), frozenset(named))


def _meant(parts: Parts, selector: str) -> list[str]:
    """Resolve one as `run` does; a flow that is no table has no lineage, so `+` adds nothing."""
    from tidegate.errors import UnknownName
    from tidegate.tables.graph import select

    topics, definitions = parts.topics, parts.project.definitions
    others = definitions.keys() - topics.keys()
    pattern = selector.removeprefix("+").removesuffix("+")
    found = {flow for flow in others if selector == flow or fnmatchcase(flow, pattern)}
    try:
        found |= select(topics, [selector])
    except ValueError:
        if not found and not any(sign in selector for sign in "*?[+"):
            # A source, or one that is no longer in the project: known by its name alone.
            return [known_topic(parts, selector)]
    if not found:
        names = ", ".join(sorted(others | select(topics, []))) or "none"
        raise UnknownName(f"{selector!r} matches no flow; there are: {names}")
    return sorted(found)
