"""The rules that a transform must keep, so that running it block by block loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlglot import exp

from tidegate.model.blockrows import BlockRows
from tidegate.model.viewreading import (
    Finding,
    Reading,
    first_line,
    own_nodes,
    read,
    restricting_blocks,
)
from tidegate.model.viewtext import ViewText, reachable
from tidegate.model.viewtree import block_calls


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
            for finding in _not_dealt(reading, base)
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


def _not_dealt(reading: Reading, base: str) -> Iterator[Finding]:
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
