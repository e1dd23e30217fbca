"""A view as its rules look at it: the tree, its lines, and which SELECT a node belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import TokenType, exp

from tidegate.model.viewtext import ViewText
from tidegate.model.viewtree import (
    ViewQuery,
    block_calls,
    line_at,
    line_of,
    nodes,
    parse_view,
    position,
    table_references,
    tokens_of,
)


@dataclass(frozen=True)
class Finding:
    """Something wrong in a view, at a line of that view's own text."""

    view: str
    line: int
    message: str


@dataclass(frozen=True)
class Reading:
    """A view as a tree; `ctes` gives, by a table node's identity, the query that it names."""

    view: ViewText
    root: ViewQuery
    ctes: Mapping[int, exp.Expr]

    def line(self, node: exp.Expr) -> int:
        return line_of(node, self.view.text)

    def finding(self, line: int, message: str) -> Finding:
        return Finding(self.view.name, line, message)


def read(view: ViewText) -> Reading:
    """Parse a view for those who follow its names."""
    root = parse_view(view.text)
    references = table_references(root)
    return Reading(view, root, {id(r.node): r.cte for r in references if r.cte is not None})


def first_line(reading: Reading, select: exp.Select) -> int:
    """The line of the first column, since SELECT itself has no place in the tree."""
    starts = [n.meta["start"] for p in select.expressions for n in nodes(p) if "start" in n.meta]
    return line_at(reading.view.text, min(starts, default=position(select)))


def own_nodes(select: exp.Select) -> Iterator[exp.Expr]:
    """The nodes of a SELECT itself: other queries in it are given, but not entered."""
    waiting = list(select.iter_expressions())
    while waiting:
        node = waiting.pop()
        # CTEs are followed where they are read; a PIVOT belongs to the relation before it.
        if isinstance(node, exp.Hint | exp.With | exp.Pivot):
            continue
        yield node
        if not is_query(node):
            waiting.extend(node.iter_expressions())


def is_query(node: exp.Expr) -> bool:
    """Tell whether a node is a SELECT of its own."""
    if isinstance(node, exp.Subquery):
        # FROM (a JOIN b) is a Subquery to sqlglot, but no SELECT of its own.
        return not isinstance(node.unnest(), exp.Table)
    return isinstance(node, exp.Select | exp.SetOperation)


def restricting_blocks(select: exp.Select) -> Iterator[exp.Anonymous]:
    """The calls of block() in the conditions of a SELECT, FILTER (WHERE …) among them."""
    own = {id(node) for node in own_nodes(select)}
    for call in block_calls(select):
        if call.name.lower() == "block" and id(call) in own:
            condition = call.find_ancestor(exp.Where, exp.Having, exp.Qualify, exp.Join, exp.Select)
            if not isinstance(condition, exp.Select):
                yield call


def keyword_line(
    reading: Reading, before: Iterable[exp.Expr], keywords: Iterable[TokenType]
) -> int:
    """The line of a keyword, which has no place in the tree: the first one after `before`."""
    text = reading.view.text
    ends = [n.meta["end"] for part in before for n in nodes(part) if "end" in n.meta]
    last = max(ends, default=0)
    for token in tokens_of(text):
        if token.start > last and token.token_type in keywords:
            return line_at(text, token.start)
    return line_at(text, last)
