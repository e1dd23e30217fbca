"""Statements of `before` and `after`: split where Spark would, and their tables named."""

from __future__ import annotations

import pytest

from tidegate.sql.reading import statement_tables, statements


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" ; ;; \n", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        ("SELECT 1 -- a; b\n; SELECT 2", ["SELECT 1 -- a; b", "SELECT 2"]),
        ("SELECT 1 /* ; */; SELECT `a;b`", ["SELECT 1 /* ; */", "SELECT `a;b`"]),
    ],
)
def test_statements_are_told_apart(text: str, parts: list[str]) -> None:
    assert statements(text) == parts


@pytest.mark.parametrize("text", ["SELECT 'open", "SELECT `open", 'SELECT "open'])
def test_a_text_that_does_not_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not read as SQL"):
        statements(text)


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("SELECT * FROM fact.orders o JOIN stage.x USING (id)", ["fact.orders", "stage.x"]),
        ("DELETE FROM fact.orders WHERE pos < 0", ["fact.orders"]),
        ("SELECT * FROM a_view", []),
        ("OPTIMIZE ((( what", []),
        ("", []),
    ],
)
def test_the_tables_of_a_statement_are_named(statement: str, tables: list[str]) -> None:
    assert statement_tables(statement) == tables
