"""A view's SQL as a tree to look at, with the place of everything in the text."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sqlglot import ParseError, Token, TokenError, TokenType, exp, parse, tokenize

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
