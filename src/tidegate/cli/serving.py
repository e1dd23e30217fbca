"""`up`, `manager` and `worker`: processes that go on until they are stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.opening import opened
from tidegate.cli.running import apply_first

if TYPE_CHECKING:
    from tidegate.ports import Bus
    from tidegate.services.lifecycle import Lifecycle
    from tidegate.wiring import Parts

Slots = Annotated[
    int, typer.Option("--slots", min=1, max=256, help="How many executions at once, on one Spark.")
]
Apply = Annotated[
    bool, typer.Option("--apply", help="On a shared store: apply changed definitions first.")
]
_DEFAULT_SLOTS = 2
_LAST_SECONDS = 10.0
"""How long a worker that leaves waits for its part as a leader to end."""


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(manager)
    app.command()(worker)


def up(context: typer.Context, slots: Slots = _DEFAULT_SLOTS, apply: Apply = False) -> None:
    """Keep the project fresh: a manager, and a worker beside it, until stopped."""
    from tidegate.cli.child import WorkerChild

    with opened(context) as parts:
        apply_first(parts, apply)
        life = _until_stopped()
        with parts.bus() as bus:
            bus.create_topics()
            life.on_stop(bus.wake)
            _say(f"{parts.project.settings.folder}: up; ctrl-C stops it")
            with WorkerChild(parts.project.settings.folder, slots, life):
                parts.manager(bus, life).serve()
        _say("stopped")


def manager(context: typer.Context, apply: Apply = False) -> None:
    """Plan and assign, for workers elsewhere; of several managers one leads."""
    with opened(context) as parts:
        apply_first(parts, apply)
        life = _until_stopped()
        with parts.bus() as bus:
            bus.create_topics()
            life.on_stop(bus.wake)
            _say("manager: up; ctrl-C stops it")
            parts.manager(bus, life).serve()


def worker(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="What to call it; the host's name if not given.")] = "",
    slots: Slots = _DEFAULT_SLOTS,
    tags: Annotated[str, typer.Option(help="What it can do, with commas: big,gpu.")] = "",
    no_lead: Annotated[bool, typer.Option("--no-lead", help="Never stand for leadership.")] = False,
    foreign_manager: Annotated[
        bool,
        typer.Option("--foreign-manager", help="Take assigns from a manager that is not ours."),
    ] = False,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Run what a manager assigns, on one Spark with several slots, until stopped."""
    from tidegate.wiring import Hiring

    hiring = Hiring(name, slots, listed(tags), foreign_manager)
    with opened(context) as parts, ExitStack() as stack:
        parts.require_own_lake()
        life = _until_stopped()
        if child:
            _stop_with_the_parent(parts, life)
        bus = stack.enter_context(parts.bus())
        spark = stack.enter_context(parts.spark())
        # Before it is known to anybody: work that came earlier would wait for Spark to start.
        spark.fresh()
        life.on_stop(bus.wake)
        if not (no_lead or foreign_manager):
            bus.create_topics()
            stack.enter_context(_managing(parts, bus, life))
        _say(f"worker {name or 'without a name'}: up with {slots} slots")
        parts.worker(spark, bus, life, hiring).serve()
        # It ends by itself only when Spark is gone.
        failed = not life.stopping
    if failed:
        raise typer.Exit(1)


@contextmanager
def _managing(parts: Parts, bus: Bus, life: Lifecycle) -> Iterator[None]:
    """Stand for leadership beside the work; at the end, wait until it is given up."""
    over = parts.runtime.mailbox()

    def serve() -> None:
        parts.manager(bus, life).serve()
        over.put(None)

    parts.runtime.spawn("manager", serve)
    try:
        yield
    finally:
        if not life.stopping:
            life.stop()
        over.receive(_LAST_SECONDS)


def _until_stopped() -> Lifecycle:
    """Let ctrl-C and SIGTERM ask for the end: once for an orderly one, twice for one at once."""
    from tidegate.runtime import settle
    from tidegate.services.lifecycle import Lifecycle

    settle()
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("tidegate").setLevel(logging.INFO)
    life = Lifecycle()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: life.stop())
    return life


def _stop_with_the_parent(parts: Parts, life: Lifecycle) -> None:
    """Drain when the process that started this one is gone: its end of the pipe closes."""

    def wait() -> None:
        # Past Python's buffer, whose lock would hold up the end of the process.
        while os.read(0, 4096):
            continue
        life.stop()

    parts.runtime.spawn("parent", wait)


def listed(text: str) -> tuple[str, ...]:
    """Take names with commas between."""
    return tuple(item for item in map(str.strip, text.split(",")) if item)


def _say(text: str) -> None:
    print(text, flush=True)
