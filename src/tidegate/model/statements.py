"""SQL statements that stand side by side in `before` and `after`, told apart without a JVM."""

from __future__ import annotations

from sqlglot import TokenType, exp, parse_one
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError


def statements(text: str) -> list[str]:
    """Split at semicolons that stand outside of strings and comments."""
    try:
        tokens = Dialect.get_or_raise("spark").tokenize(text)
    except SqlglotError as error:
        raise ValueError(f"does not read as SQL: {str(error).splitlines()[0]}") from None
    ends = [token.start for token in tokens if token.token_type is TokenType.SEMICOLON]
    starts = [0, *(end + 1 for end in ends)]
    parts = [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]
    return [part.strip() for part in parts if part.strip()]


def statement_tables(statement: str) -> list[str]:
    """Name the `db.table`s of a statement; one that the reader does not know names none."""
    try:
        parsed = parse_one(statement, dialect="spark")
    except SqlglotError:
        return []
    return [f"{table.db}.{table.name}" for table in parsed.find_all(exp.Table) if table.db]
