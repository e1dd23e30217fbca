"""The command `tidegate`: thin modules, one a group, that hand the work to the parts."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli import operators, project, running, serving, tables
from tidegate.cli.output import complain
from tidegate.errors import TidegateError

_INTERRUPTED = 130
app = typer.Typer(
    name="tidegate",
    help="Tables that fill themselves from positions, not from a clock: block by block, once.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


for module in (project, running, serving, operators, tables):
    module.register(app)


@app.callback()
def _project(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option("-C", "--project", metavar="DIR", help="The project's folder."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    context.obj = folder
    del debug


def main() -> None:
    """Run the command, and turn what goes wrong into one sentence and an exit code."""
    arguments, debug = _hoisted(sys.argv[1:])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app(args=arguments, prog_name="tidegate")
        finally:
            sys.stdout.flush()
    except (SystemExit, BrokenPipeError) as end:
        if isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError):
            # Somebody closed the pipe, as `| head` does: that is no failure of ours.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(0)
        if end.code == _INTERRUPTED:
            complain("interrupted; the next run goes on from here")
        raise
    except Exception as error:  # noqa: BLE001  (the last place where it can become a sentence)
        if debug:
            traceback.print_exc()
        else:
            complain(_sentence(error))
        sys.exit(error.exit_code if isinstance(error, TidegateError) else 1)


def _sentence(error: Exception) -> str:
    if isinstance(error, TidegateError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    said = " ".join(str(error).split())[:300]
    return (
        f"{type(error).__name__}{f' ({said})' if said else ''}, which is a fault of Tidegate's own;"
        " please report it with what --debug shows"
    )


def _hoisted(arguments: list[str]) -> tuple[list[str], bool]:
    """Let -C and --debug stand anywhere, as people type them."""
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument in ("-C", "--project"):
            front += [argument, *([value] if (value := next(waiting, None)) is not None else [])]
        elif argument == "--debug" or argument.startswith(("--project=", "-C")):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest, "--debug" in front
