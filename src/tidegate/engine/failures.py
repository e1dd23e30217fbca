"""What Spark says when it fails, as one sentence for people."""

from __future__ import annotations

import re

_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*(.+)", re.DOTALL)
_CLASS = re.compile(r"^(?:\w+\.)+[\w$]+: (?=.)")
_TAILS = re.compile(r"\s*SQLSTATE:.*|\s*== SQL.*|\n\s*at .*|;\n.*", re.DOTALL)
_ADVICE = re.compile(r"\s*(?:Use `try_|If necessary set|To tolerate|To return NULL).*", re.DOTALL)
_DATA_ERROR = re.compile(
    # SQL's classes for a data exception, for a function of the user's that failed, and raise_error.
    r"SQLSTATE: (?:22|38|39|P0)\w{3}|PythonException|ArithmeticException|NumberFormatException"
)
_NOT_A_ROW = ("TIDEGATE_", "OutOfMemoryError", "No space left", "FileNotFoundException")
_DULL = ("TASK_WRITE_FAILED", "INTERNAL_ERROR", "FAILED_EXECUTE_UDF")
"""Conditions that only say that something below them failed."""


def sentence(error: BaseException) -> str:
    """Find the cause in an error of Spark's, and leave the rest of the stack away."""
    text = str(error)
    told = [match for match in (_told(part) for part in (text, *_causes(text))) if match]
    sharp = [what for condition, what in told if condition not in _DULL]
    if sharp:
        return sharp[-1]
    causes = _CAUSE.findall(text)
    if causes:
        return _tidy(causes[-1])
    lines = [line for line in text.splitlines() if line.strip(": ")]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [_CLASS.sub("", lines[1].lstrip(": "))]
    return _tidy(lines[0].lstrip(": ")) if lines else type(error).__name__


def blames_a_row(error: BaseException) -> bool:
    """Tell whether Spark failed over what a row holds, and not over the lake or itself."""
    text = str(error)
    if any(sign in text for sign in _NOT_A_ROW):
        return False
    return _DATA_ERROR.search(text) is not None


def _causes(text: str) -> list[str]:
    return [text[match.start(1) :] for match in _CAUSE.finditer(text)]


def _told(text: str) -> tuple[str, str] | None:
    found = _CONDITION.search(text)
    if found is None:
        return None
    return found[1], f"{_tidy(_ADVICE.sub('', _TAILS.sub('', found[2])))} [{found[1]}]"


def _tidy(text: str) -> str:
    return " ".join(text.split())[:600]
