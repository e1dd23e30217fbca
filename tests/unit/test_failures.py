"""What Spark says when it fails becomes one sentence that a person can act on."""

from __future__ import annotations

import pytest

from tidegate.spark.session import sentence

WRITE_FAILED = """An error occurred while calling o123.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to \
file:/lake/fact/orders. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(Q.scala:776)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 \
failed 1 times, most recent failure: Lost task 0.0 in stage 5.0 (TID 8) (localhost executor \
driver): org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(Q.scala:776)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use \
`try_divide` to tolerate divisor being 0 and return NULL instead. If necessary set \
"spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012
== SQL (line 2, position 8) ==
SELECT o.amount / 0
       ^^^^^^^^^^^^

\tat org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(Q.scala:204)
\t... 22 more
"""

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with \
name `o`.`amonut` cannot be resolved. Did you mean one of the following? [`o`.`amount`, `o`.`id`]. \
SQLSTATE: 42703; line 1 pos 14;
'Project [pos#1L, id#2L, 'o.amonut]
+- SubqueryAlias o
   +- SubqueryAlias spark_catalog.stage.orders
"""

PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)

== SQL ==
SELECT 1 FORM x
---------^^^
"""

CAST = (
    """[CAST_INVALID_INPUT] The value 'abc' of the type "STRING" cannot be cast to "BIGINT" """
    "because it is malformed. Correct the value as per the syntax, or change its target type. "
    "Use `try_cast` to tolerate malformed input and return NULL instead. SQLSTATE: 22018"
)

NO_SPACE = """An error occurred while calling o55.sql.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""

FILE_GONE = """An error occurred while calling o55.sql.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.io.FileNotFoundException: /lake/part-0.parquet (No such file or directory)
\tat java.base/java.io.FileInputStream.open0(Native Method)
"""

CONNECT = """(org.apache.spark.SparkArithmeticException) [DIVIDE_BY_ZERO] Division by zero. Use \
`try_divide` to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012

JVM stacktrace:
org.apache.spark.SparkArithmeticException
\tat org.apache.spark.Foo.bar(Foo.scala:1)"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WRITE_FAILED, "Division by zero. [DIVIDE_BY_ZERO]"),
        (
            UNRESOLVED,
            "A column, variable, or function parameter with name `o`.`amonut` cannot be resolved."
            " Did you mean one of the following? [`o`.`amount`, `o`.`id`]."
            " [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
        (PARSE, "Syntax error at or near 'FORM'. [PARSE_SYNTAX_ERROR]"),
        (
            CAST,
            'The value \'abc\' of the type "STRING" cannot be cast to "BIGINT" because it is'
            " malformed. Correct the value as per the syntax, or change its target type."
            " [CAST_INVALID_INPUT]",
        ),
        (NO_SPACE, "No space left on device"),
        (FILE_GONE, "/lake/part-0.parquet (No such file or directory)"),
        (CONNECT, "Division by zero. [DIVIDE_BY_ZERO]"),
        ("[INVALID_UTF8_STRING] Not a text. SQLSTATE: 22029", "Not a text. [INVALID_UTF8_STRING]"),
        ("first line\nsecond line", "first line"),
        ("", "ValueError"),
        (" \n : \n", "ValueError"),
        ("Caused by: java.lang.NullPointerException", "java.lang.NullPointerException"),
    ],
)
def test_the_cause_is_told_and_the_stack_is_not(text: str, told: str) -> None:
    assert sentence(ValueError(text)) == told


@pytest.mark.parametrize("text", ["[TASK_WRITE_FAILED] Task failed.", "x" * 100_000, "[A] " * 9999])
def test_whatever_comes_there_is_one_line_of_a_length_to_read(text: str) -> None:
    told = sentence(ValueError(text))
    assert told
    assert "\n" not in told
    assert len(told) < 700
