"""The command `tidegate`: thin modules, one a group, that hand the work to the parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli import history, looking, offsets, project, running, setup
from tidegate.cli.output import complain
from tidegate.errors import TidegateError

app = typer.Typer(
    name="tidegate",
    help="Tables that fill themselves from positions, not from a clock: block by block, once.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (project, running, looking, history, setup):
    module.register(app)
app.add_typer(offsets.app, name="offsets")


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
    try:
        app(args=arguments, prog_name="tidegate", standalone_mode=True)
    except TidegateError as error:
        if debug:
            raise
        complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Somebody closed the pipe, as `| head` does: that is no failure of ours.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        complain("interrupted; the next run goes on from here")
        sys.exit(130)


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
        elif argument == "--debug" or argument.startswith("--project="):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest, "--debug" in front
