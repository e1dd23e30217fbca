"""A view's SQL read without a JVM: its tree, what it reads and calls, and where all of it stands.

What stands side by side in `before` and `after` is told apart here, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sqlglot import ParseError, Token, TokenError, TokenType, exp, parse, parse_one, tokenize
from sqlglot.errors import SqlglotError

# sqlglot warns on stderr about statements it only half understands; we refuse those in words.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


DIALECT = "spark"
KEPT = 1_000
"""So many texts are remembered as they were read: block after block asks for the same few."""
_TREES = 16
"""Trees are large, but each rule of a transform asks for its tree right after the one before."""
BLOCK_FUNCTIONS = frozenset({"block", "upto"})
ViewQuery = exp.Select | exp.SetOperation | exp.Subquery
_FILE_FORMATS = frozenset(
    {"delta", "parquet", "orc", "json", "csv", "text", "avro", "xml", "binaryfile", "iceberg"}
)


# Spark's names of functions that sqlglot keeps under a name, and without a position, of its own.
_SPARK_NAMES: Mapping[type[exp.Expr], str] = {
    exp.Any: "any",
    exp.ApproxQuantile: "percentile_approx",
    exp.ArgMax: "max_by",
    exp.ArgMin: "min_by",
    exp.GroupConcat: "listagg",
    exp.Quantile: "percentile",
}
_NO_WORDS = frozenset({TokenType.L_PAREN, TokenType.R_PAREN, TokenType.SEMICOLON})


class ViewSyntaxError(Exception):
    """The text of a view is not one plain SELECT that Tidegate can read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


@dataclass(frozen=True)
class TableReference:
    """A name that a view reads; `cte` is the query behind it if the name is a CTE's."""

    name: str
    node: exp.Table
    cte: exp.Expr | None

    @property
    def qualified(self) -> bool:
        return len(self.node.parts) > 1

    @property
    def is_path(self) -> bool:
        parts = [part.name for part in self.node.parts]
        if len(parts) != 2:
            return False
        source, target = parts
        return "/" in target or (
            source.lower() in _FILE_FORMATS and any(mark in target for mark in ".:\\*")
        )


@lru_cache(maxsize=_TREES)
def parse_view(text: str) -> ViewQuery:
    """The text as a tree to look at, never to change; ViewSyntaxError unless one plain SELECT."""
    tokens = tokens_of(text)
    words = [token for token in tokens if token.token_type not in _NO_WORDS]
    if not words:
        raise ViewSyntaxError(1, "the view is empty; it has to be a SELECT")
    for token, following in pairwise(tokens):
        ended = token.token_type == TokenType.SEMICOLON
        if ended and following.token_type != TokenType.SEMICOLON:
            raise ViewSyntaxError(
                line_at(text, following.start),
                "a second statement begins here; a view is one SELECT and nothing else",
            )
        # sqlglot rewrites pipes into queries that nobody wrote, so what we say would mislead.
        if token.token_type == TokenType.PIPE_GT:
            raise ViewSyntaxError(
                line_at(text, token.start),
                "Tidegate's reader does not understand |> pipes; write this as a SELECT",
            )
    root = _tree(text)
    if not isinstance(root, ViewQuery) or not isinstance(root.unnest(), ViewQuery):
        first = words[0]
        begun = root.key if root is not None and first.token_type == TokenType.WITH else first.text
        raise ViewSyntaxError(
            line_at(text, first.start), f"a view has to be a plain SELECT, this is {begun.upper()}"
        )
    return root


def tokens_of(text: str) -> list[Token]:
    """Split a text into words; ViewSyntaxError where one does not end."""
    try:
        return tokenize(text, read=DIALECT)
    except TokenError as error:
        # The cause names the offset where the token began; an open comment has no such cause.
        began = re.search(r"from \d+:(\d+)$", str(error.__cause__))
        offset = int(began[1]) if began else max(text.rfind("/*"), 0)
        raise ViewSyntaxError(
            line_at(text, offset),
            "a string, a quoted name or a comment begins here and does not end, or is malformed",
        ) from error


def _tree(text: str) -> exp.Expr | None:
    try:
        return parse(text, read=DIALECT)[0]
    except ParseError as error:
        raise _not_understood(error) from error
    except RecursionError as error:
        raise ViewSyntaxError(
            1, "the SELECT is nested too deeply for Tidegate's reader; split it into views"
        ) from error
    except (TokenError, LookupError, ValueError, TypeError, AssertionError) as error:
        # sqlglot trips over hints that it cannot split and calls without the arguments it expects.
        raise ViewSyntaxError(
            1,
            "Tidegate's reader does not understand the SELECT; "
            "look for a malformed hint or a function that lacks arguments",
        ) from error


def _not_understood(error: ParseError) -> ViewSyntaxError:
    # sqlglot's own text runs over lines, carries ANSI codes and names Python classes.
    detail = error.errors[0] if error.errors else {}
    description = str(detail.get("description") or "")
    near = str(detail.get("highlight") or "").strip()
    place = f" at `{near}`" if near else ""
    expected = description.removeprefix("Expecting ")
    hint = f" (`{expected}` is missing)" if expected != description else ""
    return ViewSyntaxError(
        int(detail.get("line") or 1),
        f"Tidegate's reader does not understand the SELECT{place}{hint}; "
        "if Spark does, write this part in another way",
    )


def nodes(root: exp.Expr) -> Iterator[exp.Expr]:
    """Every node that stands in the text; those of a hint have positions within the hint only."""
    return root.walk(prune=lambda node: isinstance(node, exp.Hint))


def table_references(root: exp.Expr) -> list[TableReference]:
    """Every name that is read in a FROM or JOIN, in the order of the text."""
    references = [
        _reference(node, scope)
        for node, scope in _scoped(root)
        if isinstance(node, exp.Table) and isinstance(node.parts[-1], exp.Identifier)
    ]
    return sorted(references, key=lambda reference: position(reference.node))


def _reference(node: exp.Table, scope: Mapping[str, exp.Expr]) -> TableReference:
    name = ".".join(part.name for part in node.parts).lower()
    return TableReference(name, node, scope.get(name) if len(node.parts) == 1 else None)


def _scoped(root: exp.Expr) -> Iterator[tuple[exp.Expr, Mapping[str, exp.Expr]]]:
    """Every node with the CTEs that it sees: those before it in its WITH and all further out."""
    waiting: list[tuple[exp.Expr, Mapping[str, exp.Expr]]] = [(root, {})]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, exp.Hint):
            continue
        yield node, scope
        with_ = node.args.get("with_")
        if isinstance(with_, exp.With):
            for cte in with_.expressions:
                outer, scope = scope, {**scope, cte.alias.lower(): cte.this}
                waiting.append((cte, scope if with_.args.get("recursive") else outer))
        waiting.extend((child, scope) for child in node.iter_expressions() if child is not with_)


def block_calls(root: exp.Expr) -> Iterator[exp.Anonymous]:
    """The calls of block() and upto(); db.block() and FROM block() are somebody else's."""
    for node in nodes(root):
        if isinstance(node, exp.Anonymous) and node.name.lower() in BLOCK_FUNCTIONS:
            qualified = isinstance(node.parent, exp.Dot) and node.arg_key == "expression"
            if not qualified and not isinstance(node.parent, exp.Table):
                yield node


def function_name(node: exp.Expr, text: str) -> str:
    """A function's name in lower-case, as the text has it where sqlglot kept its position."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    start, end = node.meta.get("start"), node.meta.get("end")
    if start is not None and end is not None:
        return text[start : end + 1].strip("`").lower()
    known = _SPARK_NAMES.get(type(node))
    if known is None and isinstance(node, exp.Func):
        known = node.sql_name()
    return (known or node.key).lower()


def position(node: exp.Expr) -> int:
    """Where a node begins in the text; 0 if nothing of it has a place there."""
    return min((n.meta["start"] for n in nodes(node) if "start" in n.meta), default=0)


def line_of(node: exp.Expr, text: str) -> int:
    return line_at(text, position(node))


def line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


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


def statements(text: str) -> list[str]:
    """Split at semicolons that stand outside of strings and comments."""
    try:
        tokens = tokenize(text, read=DIALECT)
    except SqlglotError as error:
        raise ValueError(f"does not read as SQL: {str(error).splitlines()[0]}") from None
    ends = [token.start for token in tokens if token.token_type is TokenType.SEMICOLON]
    starts = [0, *(end + 1 for end in ends)]
    parts = [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]
    return [part.strip() for part in parts if part.strip()]


def pointed_at(text: str, table: str, other: str) -> str:
    """Let statements mean another table wherever they name this one."""
    return "; ".join(_pointed_at(statement, table, other) for statement in statements(text))


def _pointed_at(statement: str, table: str, other: str) -> str:
    # The reader takes what follows some commands for a text, unless a word stands before them.
    shift = "_ "
    tokens = tokenize(shift + statement, read=DIALECT)
    quoted = ".".join(f"`{part}`" for part in other.split("."))
    for first, dot, last in reversed(list(zip(tokens, tokens[1:], tokens[2:], strict=False))):
        named = f"{first.text}{dot.text}{last.text}".lower() == table.lower()
        if named and dot.token_type is TokenType.DOT:
            start, end = first.start - len(shift), last.end + 1 - len(shift)
            statement = f"{statement[:start]}{quoted}{statement[end:]}"
    return statement


def statement_tables(statement: str) -> list[str]:
    """Name the `db.table`s of a statement; one that the reader does not know names none."""
    try:
        parsed = parse_one(statement, read=DIALECT)
    except SqlglotError:
        return []
    return [f"{table.db}.{table.name}" for table in parsed.find_all(exp.Table) if table.db]
