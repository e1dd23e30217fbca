"""What a view's SQL says: the tables and views it reads, its parameters, what it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from tidegate.model.viewtree import (
    KEPT,
    ViewSyntaxError,
    block_calls,
    function_name,
    line_of,
    nodes,
    parse_view,
    table_references,
)

_NONDETERMINISTIC = frozenset(
    {
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "reflect",
        "java_method",
        "try_reflect",
        "now",
        "current_timestamp",
        "current_date",
        "current_time",
        "curdate",
        "localtimestamp",
    }
)
# Spark reads these words in a typed literal, as in DATE 'today', by the clock.
_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})


class ViewCycleError(Exception):
    """Views read each other in a circle, so none of them can be made first."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(
            f"views read each other in a circle: {' → '.join(cycle)}; "
            "let one of them read a table instead"
        )
        self.cycle = tuple(cycle)


@dataclass(frozen=True)
class ViewText:
    """A view's text and what it says; names are lower-case and mapped to their first line."""

    name: str
    text: str
    tables: Mapping[str, int]
    views: Mapping[str, int]
    parameters: frozenset[str]
    calls: frozenset[str]
    nondeterministic: frozenset[str]


@lru_cache(KEPT)
def read_view(name: str, text: str) -> ViewText:
    """Read what a view's text says, or raise ViewSyntaxError."""
    root = parse_view(text)
    _refuse_hidden_tables(root, text)
    tables: dict[str, int] = {}
    views: dict[str, int] = {}
    for reference in table_references(root):
        if reference.qualified:
            if not reference.is_path:
                tables.setdefault(reference.name, line_of(reference.node, text))
        elif reference.cte is None:
            views.setdefault(reference.name, line_of(reference.node, text))
    return ViewText(
        name=name,
        text=text,
        tables=tables,
        views=views,
        parameters=_parameters(root),
        calls=frozenset(call.name.lower() for call in block_calls(root)),
        nondeterministic=_nondeterministic(root, text),
    )


def reachable(names: Sequence[str], views: Mapping[str, ViewText]) -> list[str]:
    """All views that `names` read, themselves included, each after the views that it reads."""
    known = {name.lower(): name for name in views}
    done: dict[str, None] = {}
    for name in names:
        _reach(name.lower(), known, views, (), done)
    return list(done)


def _reach(
    name: str,
    known: Mapping[str, str],
    views: Mapping[str, ViewText],
    path: tuple[str, ...],
    done: dict[str, None],
) -> None:
    key = known.get(name)
    if key is None or key in done:
        return
    if key in path:
        raise ViewCycleError([*path[path.index(key) :], key])
    for read in views[key].views:
        _reach(read, known, views, (*path, key), done)
    done[key] = None


def tables_read(names: Sequence[str], views: Mapping[str, ViewText]) -> dict[str, tuple[str, int]]:
    """Each table that `names` read, directly or through views, with the view and line naming it."""
    found: dict[str, tuple[str, int]] = {}
    for name in reachable(names, views):
        for table, line in views[name].tables.items():
            found.setdefault(table, (name, line))
    return found


def _refuse_hidden_tables(root: exp.Expr, text: str) -> None:
    """Lineage must be able to trust that every table a view reads was seen."""
    for node in nodes(root):
        if not isinstance(node, exp.Anonymous):
            continue
        called = node.name.lower()
        by_expression = called == "identifier" and isinstance(node.parent, exp.Table)
        as_argument = called == "table" and any(
            isinstance(argument, exp.Column) for argument in node.expressions
        )
        if by_expression or as_argument:
            raise ViewSyntaxError(
                line_of(node, text),
                f"Tidegate's reader cannot tell which table {called.upper()}(…) reads; "
                "write the table's name in FROM",
            )


def _parameters(root: exp.Expr) -> frozenset[str]:
    # `v:field`, a path into a variant, looks to sqlglot like a column with the alias `:field`.
    return frozenset(
        node.name
        for node in nodes(root)
        if isinstance(node, exp.Placeholder) and node.name and node.arg_key != "alias"
    )


def _nondeterministic(root: exp.Expr, text: str) -> frozenset[str]:
    found = set()
    for node in nodes(root):
        if isinstance(node, exp.TableSample) and node.args.get("seed") is None:
            found.add("tablesample")
        elif isinstance(node, exp.Cast) and _reads_clock(node):
            found.add(node.this.name.strip().lower())
        elif isinstance(node, exp.Func):
            found.add(function_name(node, text))
    return frozenset(found & (_NONDETERMINISTIC | _CLOCK_WORDS | {"tablesample"}))


def _reads_clock(cast: exp.Cast) -> bool:
    literal = isinstance(cast.this, exp.Literal) and cast.this.is_string
    return (
        literal
        and cast.this.name.strip().lower() in _CLOCK_WORDS
        and cast.is_type(*exp.DataType.TEMPORAL_TYPES)
    )
