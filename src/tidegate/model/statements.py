"""SQL statements that stand side by side in `before` and `after`, told apart without a JVM."""

from __future__ import annotations

from sqlglot import TokenType, exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from tidegate.model.viewtree import DIALECT


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
