"""Follows the rows of a block through a view: what needs more of them than one block has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot import TokenType, exp

from tidegate.model.viewreading import (
    Finding,
    Reading,
    first_line,
    is_query,
    keyword_line,
    own_nodes,
    restricting_blocks,
)
from tidegate.model.viewtree import function_name

# Spark's aggregates that sqlglot takes for unknown functions, or did in an earlier release.
_AGGREGATE_NAMES = re.compile(
    r"any|some|every|bool_(and|or)|mean|std|measure|try_(sum|avg)|regr_\w+|mode|grouping(_id)?"
    r"|histogram_numeric|count_min_sketch|percentile(_\w+)?|approx_top_k(_accumulate|_combine)?"
    r"|listagg|\w+_agg(_(bigint|integer|float|double))?"
)
_AROUND_FUNCTION = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_SET_KEYWORDS = frozenset({TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT})


@dataclass(frozen=True)
class _Refused:
    """Something in a SELECT that needs to see more rows than one block has."""

    line: int
    label: str


class _Role(Enum):
    """What a SELECT does with a relation that stands in it."""

    SOURCE = "its rows are read in FROM or JOIN"
    PREDICATE = "it only decides which rows stay, as IN, EXISTS and semi joins do"
    VALUE = "it gives one value"


class BlockRows:
    """Follows the rows that block() lets through, from SELECT to SELECT, view to view."""

    def __init__(self, readings: Mapping[str, Reading], *, base: str, position: str) -> None:
        self.findings: list[Finding] = []
        self._readings = readings
        self._base = base
        self._position = position
        self._known: dict[int, bool] = {}

    def come_from(self, reading: Reading, relation: exp.Expr) -> bool:
        """Whether the rows of a relation are those of a block; notes what is refused in it."""
        key = id(relation)
        if key not in self._known:
            # A recursive CTE meets itself; what it adds to itself is decided by its other half.
            self._known[key] = False
            self._known[key] = self._follow(reading, relation)
        return self._known[key]

    def _follow(self, reading: Reading, relation: exp.Expr) -> bool:
        if isinstance(relation, exp.Select):
            return self._follow_select(reading, relation)
        if isinstance(relation, exp.SetOperation):
            return self._follow_set(reading, relation)
        if isinstance(relation, exp.Table):
            return self._follow_name(reading, relation)
        if isinstance(relation, exp.Subquery):
            fed = self.come_from(reading, relation.this)
            if fed:
                self._refuse(reading, _limits(reading, relation))
            return fed
        return False

    def _follow_name(self, reading: Reading, table: exp.Table) -> bool:
        cte = reading.ctes.get(id(table))
        if cte is not None:
            return self.come_from(reading, cte)
        view = self._readings.get(table.name.lower()) if len(table.parts) == 1 else None
        return view is not None and self.come_from(view, view.root)

    def _follow_set(self, reading: Reading, query: exp.SetOperation) -> bool:
        fed = [self.come_from(reading, side) for side in (query.this, query.expression)]
        if not any(fed):
            return False
        refused = _limits(reading, query)
        if not isinstance(query, exp.Union) or query.args.get("distinct"):
            label = "UNION without ALL" if isinstance(query, exp.Union) else query.key.upper()
            line = keyword_line(reading, [query.this], _SET_KEYWORDS)
            refused = [_Refused(line, label), *refused]
        self._refuse(reading, refused)
        return True

    def _follow_select(self, reading: Reading, select: exp.Select) -> bool:
        relations = [(node, _role(node)) for node in own_nodes(select) if _is_relation(node)]
        for node, role in relations:
            if role is _Role.VALUE:
                self.come_from(reading, node)
        sources = [node for node, role in relations if role is _Role.SOURCE]
        fed = [node for node in sources if self.come_from(reading, node)]
        if not fed and not any(restricting_blocks(select)):
            return False
        pivoted = [*fed, *(node for node in sources if self._is_base(node))]
        self._refuse(
            reading,
            [
                *_clauses(reading, select),
                *_limits(reading, select),
                *_aggregates(reading, select),
                *(refused for node in pivoted for refused in _pivots(reading, node)),
            ],
        )
        return True

    def _is_base(self, node: exp.Expr) -> bool:
        if not isinstance(node, exp.Table):
            return False
        return ".".join(part.name for part in node.parts).lower() == self._base

    def _refuse(self, reading: Reading, refused: Sequence[_Refused]) -> None:
        if not refused:
            return
        labels = list(dict.fromkeys(one.label for one in sorted(refused, key=lambda r: r.line)))
        listed = " and ".join([", ".join(labels[:-1]), labels[-1]] if labels[1:] else labels)
        self.findings.append(
            reading.finding(
                min(one.line for one in refused),
                f"{listed} over a block: what spans two blocks would be computed twice, each time "
                "from a part of its rows. Pick the groups by … IN (SELECT … WHERE block(…)), read "
                "all their rows with upto(…), name the groups in `keys`, and give the max of "
                f"{self._position}",
            )
        )


def _is_relation(node: exp.Expr) -> bool:
    return isinstance(node, exp.Table) or is_query(node)


def _role(node: exp.Expr) -> _Role:
    child, parent = node, node.parent
    while parent is not None and not isinstance(parent, exp.Select):
        if isinstance(parent, exp.Exists):
            return _Role.PREDICATE
        if isinstance(parent, exp.In) and child.arg_key == "query":
            return _Role.PREDICATE
        if isinstance(parent, exp.Join):
            if child.arg_key != "this":
                return _Role.VALUE
            if parent.kind in ("SEMI", "ANTI"):
                return _Role.PREDICATE
        elif not isinstance(parent, exp.From | exp.Lateral | exp.Subquery | exp.Table):
            return _Role.VALUE
        child, parent = parent, parent.parent
    return _Role.SOURCE if isinstance(child, exp.From | exp.Join | exp.Lateral) else _Role.VALUE


def _clauses(reading: Reading, select: exp.Select) -> list[_Refused]:
    before = [
        part for key in ("from_", "joins", "laterals", "where") for part in _parts(select, key)
    ]
    found = []
    if select.args.get("distinct"):
        found.append(_Refused(first_line(reading, select), "DISTINCT"))
    if select.args.get("group"):
        line = keyword_line(reading, before, {TokenType.GROUP_BY})
        found.append(_Refused(line, "GROUP BY"))
    if select.args.get("having"):
        line = keyword_line(reading, [*before, *_parts(select, "group")], {TokenType.HAVING})
        found.append(_Refused(line, "HAVING"))
    return found


def _limits(reading: Reading, query: exp.Expr) -> list[_Refused]:
    before = [part for part in query.iter_expressions() if part.arg_key not in ("limit", "offset")]
    found = []
    limit = query.args.get("limit")
    if limit and limit.expression.name.upper() != "ALL":
        found.append(_Refused(keyword_line(reading, before, {TokenType.LIMIT}), "LIMIT"))
    if query.args.get("offset"):
        found.append(_Refused(keyword_line(reading, before, {TokenType.OFFSET}), "OFFSET"))
    return found


def _aggregates(reading: Reading, select: exp.Select) -> list[_Refused]:
    found = []
    for node in own_nodes(select):
        if isinstance(node, exp.Window) and node.args.get("over"):
            called = node.this
            while isinstance(called, _AROUND_FUNCTION):
                called = called.this
            label = f"window function {function_name(called, reading.view.text)}()"
            found.append(_Refused(reading.line(node), label))
        elif _is_aggregate(node) and not _is_windowed(node):
            label = f"{function_name(node, reading.view.text)}()"
            found.append(_Refused(reading.line(node), label))
    return found


def _is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Any):
        # LIKE ANY ('a%', 'b%') is a comparison.
        return not isinstance(node.parent, exp.Like | exp.ILike)
    if isinstance(node, exp.Anonymous):
        return _AGGREGATE_NAMES.fullmatch(node.name.lower()) is not None
    return isinstance(node, exp.AggFunc)


def _is_windowed(node: exp.Expr) -> bool:
    around = node.parent
    while isinstance(around, _AROUND_FUNCTION):
        around = around.parent
    return isinstance(around, exp.Window)


def _pivots(reading: Reading, relation: exp.Expr) -> list[_Refused]:
    return [
        _Refused(reading.line(pivot), "PIVOT")
        for pivot in relation.args.get("pivots") or []
        if not pivot.args.get("unpivot")
    ]


def _parts(query: exp.Expr, key: str) -> list[exp.Expr]:
    part = query.args.get(key)
    return part if isinstance(part, list) else [part] if part else []
