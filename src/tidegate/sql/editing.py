"""Edits the SQL of a view by the place of its tokens, so that its text is never rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sqlglot import Token, TokenType

from tidegate.sql.reading import (
    BLOCK_FUNCTIONS,
    KEPT,
    block_calls,
    parse_view,
    position,
    table_references,
    tokens_of,
)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the parts that the rows of a base table are sharded into, by the hash of a column."""

    column: str
    number: int
    of: int

    def condition(self, qualifier: str = "") -> str:
        """Write it in SQL; a NULL has a hash too, so that each row is in one shard."""
        return f"pmod(xxhash64({qualifier}`{self.column}`), {self.of}) = {self.number}"


_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})


@lru_cache(KEPT)
def typed(text: str) -> str:
    """Give block(a, b) and upto(a, b) the type of their position: block(a, b, typeof(a))."""
    return _typed_at(text, {position(call) for call in block_calls(parse_view(text))})


def typed_statement(text: str) -> str:
    """Do the same to a statement of `before` or `after`, which may be anything that Spark runs."""
    calls = {name.start for name in _called(text) if name.text.lower() in BLOCK_FUNCTIONS}
    return _typed_at(text, calls)


def calls_block(text: str) -> bool:
    """Tell whether block() is called in statements of any kind."""
    return any(name.text.lower() == "block" for name in _called(text))


def _called(text: str) -> Iterator[Token]:
    for name, opening in pairwise(tokens_of(text)):
        if opening.token_type is TokenType.L_PAREN:
            yield name


@lru_cache(KEPT)
def sharded(text: str, shard: Shard) -> str:
    """Let block(o.pos, o.id) be true for the rows of one shard only, by that same `o`."""
    calls = {
        position(call) for call in block_calls(parse_view(text)) if call.name.lower() == "block"
    }
    tokens = tokens_of(text)
    inserts: dict[int, str] = {}
    for index, token in enumerate(tokens):
        if token.start not in calls:
            continue
        pos = _arguments(tokens, index)[0]
        qualifier = text[pos[0].start : pos[-1].start]
        inserts[token.start] = "("
        inserts[_closing(tokens, index).end + 1] = f" AND {shard.condition(qualifier)})"
    return _with_inserts(text, inserts, 0, len(text))


def _typed_at(text: str, calls: set[int]) -> str:
    tokens = tokens_of(text)
    inserts: dict[int, str] = {}
    # Backwards, so that a call inside an argument is done when that argument is copied.
    for index in reversed(range(len(tokens))):
        if tokens[index].start not in calls:
            continue
        arguments = _arguments(tokens, index)
        if len(arguments) != 2 or any(_is_named(argument) for argument in arguments):
            continue
        first, second = arguments
        copied = _with_inserts(text, inserts, first[0].start, first[-1].end + 1)
        inserts[second[-1].end + 1] = f", typeof({copied})"
    return _with_inserts(text, inserts, 0, len(text))


def pinned(text: str, versions: Mapping[str, int]) -> str:
    """Let each table in `versions` be read as of its version, unless the text says another."""
    if not versions:
        return text
    inserts: dict[int, str] = {}
    for reference in table_references(parse_view(text)):
        if reference.name not in versions or reference.cte is not None:
            continue
        if reference.node.args.get("version") is not None:
            continue
        end = reference.node.parts[-1].meta["end"] + 1
        # In `db`.`t`o the alias touches the name; it must not grow together with the number.
        gap = " " if re.match(r"[\w`'\"]", text[end:]) else ""
        inserts[end] = f" VERSION AS OF {versions[reference.name]}{gap}"
    return _with_inserts(text, inserts, 0, len(text))


def redirected(text: str, table: str, view: str) -> str:
    """Let a table be read through another, under the name that the text knows it by."""
    quoted = ".".join(f"`{part}`" for part in view.split("."))
    for reference in reversed(table_references(parse_view(text))):
        if reference.name != table.lower() or reference.cte is not None:
            continue
        parts = reference.node.parts
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        alias = "" if reference.node.alias else f" AS `{parts[-1].name}`"
        text = f"{text[:start]}{quoted}{alias} {text[end:]}"
    return text


def _arguments(tokens: Sequence[Token], call: int) -> list[list[Token]]:
    """The tokens of each argument of the call whose name is the token at `call`."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[call + 1 :]:
        if token.token_type in _CLOSING:
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and token.token_type == TokenType.COMMA:
            arguments.append([])
        elif depth > 0:
            arguments[-1].append(token)
        if token.token_type in _OPENING:
            depth += 1
    return [argument for argument in arguments if argument]


def _closing(tokens: Sequence[Token], call: int) -> Token:
    """The parenthesis that ends the call whose name is the token at `call`."""
    depth = 0
    for token in tokens[call + 1 :]:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth == 0:
            return token
    raise ValueError("a call without an end does not parse")


def _is_named(argument: Sequence[Token]) -> bool:
    return len(argument) > 1 and argument[1].token_type == TokenType.FARROW


def _with_inserts(text: str, inserts: Mapping[int, str], start: int, end: int) -> str:
    """The text from `start` to `end`, with what is to be put in at offsets between them."""
    pieces = []
    at = start
    for offset in sorted(offset for offset in inserts if start < offset <= end):
        pieces += [text[at:offset], inserts[offset]]
        at = offset
    return "".join([*pieces, text[at:end]])
