"""The rules that a transform must keep, so that running it block by block loses nothing.

The rows of a block are followed through the view, to see what needs more than one block has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot import TokenType, exp

from tidegate.sql.reading import (
    Finding,
    Reading,
    ViewText,
    block_calls,
    first_line,
    function_name,
    is_query,
    keyword_line,
    own_nodes,
    reachable,
    read,
    restricting_blocks,
)


def step_findings(
    view: str,
    views: Mapping[str, ViewText],
    *,
    base: str,
    pos: str,
    id: str,
    keyed: bool,
    sharded: bool = False,
) -> list[Finding]:
    """What is wrong with `view` as a transform of a Step that reads `base` block by block."""
    readings = {name.lower(): read(views[name]) for name in reachable([view], views)}
    top = readings[view.lower()]
    rows = BlockRows(readings, base=base.lower(), position=f"({pos}, {id})")
    rows.come_from(top, top.root)
    return [
        *_not_by_block(top, readings.values(), base),
        *(finding for reading in readings.values() for finding in _wrong_arguments(reading)),
        *(
            finding
            for reading in readings.values()
            if sharded
            for finding in _not_sharded(reading, base)
        ),
        *_wrong_positions(top, (pos, id), keyed),
        *rows.findings,
    ]


def doubled_names(view: ViewText) -> Iterator[Finding]:
    """What a view gives twice, which no table takes; a UNION is named by its first SELECT."""
    top = read(view)
    first = next(_branches(top.root), None)
    seen: set[str] = set()
    for projection in first.expressions if first else ():
        for name in sorted(_names(projection) & seen - {"*"}):
            yield top.finding(
                top.line(projection),
                f"gives the column {name} twice; give one of them another name with AS",
            )
        seen |= _names(projection)


def given_columns(view: ViewText) -> frozenset[str] | None:
    """Name the columns that a view gives, in small letters; None where its text does not tell."""
    first = next(_branches(read(view).root), None)
    if first is None:
        return None
    named = [_names(projection) for projection in first.expressions]
    if any(not names or "*" in names for names in named):
        return None
    return frozenset[str]().union(*named)


def _not_by_block(top: Reading, readings: Iterable[Reading], base: str) -> Iterator[Finding]:
    if any("block" in reading.view.calls for reading in readings):
        return
    yield top.finding(
        top.view.tables.get(base.lower(), 1),
        f"does not read {base} through block(), so it would read the whole table for every "
        f"block; add WHERE block(…) with the position and the id of {base}",
    )


def _wrong_arguments(reading: Reading) -> Iterator[Finding]:
    for call in block_calls(reading.root):
        name, given = call.name.lower(), call.expressions
        if len(given) not in (2, 3):
            yield reading.finding(
                reading.line(call),
                f"{name}() takes the position and the id of a row, as in {name}(o.pos, o.id); "
                f"here it has {len(given)} argument{'' if len(given) == 1 else 's'}",
            )
        elif any(isinstance(argument, exp.Kwarg) for argument in given):
            yield reading.finding(
                reading.line(call),
                f"{name}() takes its arguments without names, as in {name}(o.pos, o.id)",
            )


def _not_sharded(reading: Reading, base: str) -> Iterator[Finding]:
    """Whose a row is, is told by a column beside its position: both must be the base's own."""
    for call in block_calls(reading.root):
        if call.name.lower() == "block" and not _is_on(call, base):
            yield reading.finding(
                reading.line(call),
                f"with shards, block() takes the position columns of {base} as they are, in the "
                f"SELECT that names {base} in its FROM or JOIN: block(o.pos, o.id)",
            )


def _is_on(call: exp.Anonymous, base: str) -> bool:
    column = call.expressions[0] if call.expressions else None
    select = call.find_ancestor(exp.Select)
    if not isinstance(column, exp.Column) or select is None:
        return False
    qualifier = ".".join(part.name for part in column.parts[:-1]).lower()
    relations = [node for node in own_nodes(select) if isinstance(node, exp.Table)]
    named = ((node, ".".join(part.name for part in node.parts).lower()) for node in relations)
    bases = [(node.alias.lower(), name) for node, name in named if name == base.lower()]
    return any(
        not qualifier or qualifier == alias or (not alias and f".{name}".endswith(f".{qualifier}"))
        for alias, name in bases
    )


def _wrong_positions(top: Reading, names: Sequence[str], keyed: bool) -> Iterator[Finding]:
    for select in _branches(top.root):
        missing = [name for name in names if not _may_give(select, name)]
        if missing:
            yield top.finding(
                first_line(top, select),
                f"does not give {' and '.join(missing)}: each row of a Step carries the position "
                "of the base row it comes from; select both columns under these names",
            )
        if not keyed:
            for index, name in enumerate(names):
                yield from _foreign_position(top, select, index, name)


def _foreign_position(top: Reading, select: exp.Select, index: int, name: str) -> Iterator[Finding]:
    projection = next((p for p in select.expressions if name.lower() in _names(p)), None)
    own = [
        call.expressions[index]
        for call in restricting_blocks(select)
        if len(call.expressions) > index
    ]
    if projection is None or not own or any(_same(projection.unalias(), arg) for arg in own):
        return
    columns = [".".join(part.name for part in a.parts) for a in own if isinstance(a, exp.Column)]
    yield top.finding(
        top.line(projection),
        f"{name} must be the base row's own position, as given to block()"
        + (f": select {' or '.join(columns)} as it is" if columns else ""),
    )


def _branches(query: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs whose columns are the view's; only a UNION has more than one."""
    if isinstance(query, exp.Select):
        yield query
    elif isinstance(query, exp.Subquery):
        yield from _branches(query.this)
    elif isinstance(query, exp.SetOperation):
        yield from _branches(query.this)
        if isinstance(query, exp.Union):
            yield from _branches(query.expression)


def _may_give(select: exp.Select, name: str) -> bool:
    return any(
        name.lower() in _names(projection) or _may_bring(projection, name.lower())
        for projection in select.expressions
    )


def _names(projection: exp.Expr) -> frozenset[str]:
    """The names that Spark gives to the columns of a projection, as far as the text tells."""
    if isinstance(projection, exp.Alias):
        return frozenset({projection.alias.lower()})
    if isinstance(projection, exp.Aliases):
        return frozenset(alias.name.lower() for alias in projection.aliases)
    if isinstance(projection, exp.Column | exp.Dot):
        return frozenset({projection.name.lower()})
    # A cast and parentheses keep the name of the column in them.
    if isinstance(projection, exp.Cast | exp.Paren):
        return _names(projection.this)
    return frozenset()


def _may_bring(projection: exp.Expr, name: str) -> bool:
    """Whether a star, or a generator that spreads structs, may bring a column of that name."""
    if isinstance(projection, exp.Inline):
        return True
    star: exp.Expr = projection
    if isinstance(projection, exp.Column):
        star = projection.this
    elif isinstance(projection, exp.Dot):
        star = projection.expression
    if not isinstance(star, exp.Star):
        return False
    return name not in {column.name.lower() for column in star.args.get("except_") or []}


def _same(given: exp.Expr, argument: exp.Expr) -> bool:
    given, argument = given.unnest(), argument.unnest()
    if isinstance(given, exp.Column) and isinstance(argument, exp.Column):
        pairs = zip(reversed(given.parts), reversed(argument.parts), strict=False)
        return all(one.name.lower() == other.name.lower() for one, other in pairs)
    return _folded(given) == _folded(argument)


def _folded(expression: exp.Expr) -> exp.Expr:
    """The expression with names in lower-case, as Spark compares them."""
    return expression.transform(
        lambda node: (
            exp.to_identifier(node.name.lower(), quoted=True)
            if isinstance(node, exp.Identifier)
            else node
        )
    )


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
