"""`up`, `manager` and `worker`: processes that go on until they are stopped.

The worker that `up` runs as its child is started again when it dies, and stopped with its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.output import opened, opened_to_look
from tidegate.cli.running import apply_first
from tidegate.control.lifecycle import Lifecycle

if TYPE_CHECKING:
    from tidegate.control.lifecycle import Lifecycle
    from tidegate.ports.outside import Bus
    from tidegate.wiring import Parts


log = logging.getLogger(__name__)
_LONGEST_WAIT = 60.0
_LONG_LIFE = 120.0
"""Seconds after which a death counts as the first one again."""


class WorkerChild:
    """One worker process in a group of its own: a JVM that dies takes nothing else along."""

    def __init__(self, project: Path, slots: int, life: Lifecycle) -> None:
        command = [sys.executable, "-m", "tidegate", "-C", str(project), "worker", "--child"]
        self._command = [*command, "--no-lead", "--name", "up", "--slots", str(slots)]
        self._life = life
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="child", daemon=True)

    def __enter__(self) -> WorkerChild:
        self._life.on_stop(self._stop)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._stopped.is_set():
            self._stop()
        self._thread.join()

    def _keep_alive(self) -> None:
        wait = 1.0
        while not self._stopped.is_set():
            started = os.times().elapsed
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, start_new_session=True
            )
            if self._stopped.is_set():
                self._tell(self._process)
            code = self._process.wait()
            self._clear_away(self._process.pid)
            if self._stopped.is_set():
                return
            wait = 1.0 if os.times().elapsed - started > _LONG_LIFE else wait
            log.warning("the worker ended with code %d; it is started again in %g s", code, wait)
            self._stopped.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _stop(self) -> None:
        """Ask the worker to end: each time it is asked, it hurries more."""
        self._stopped.set()
        process = self._process
        if process is not None:
            self._tell(process)

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def _clear_away(self, group: int) -> None:
        """End a JVM that outlived its worker: nobody would ever use it again."""
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return


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
    from tidegate.cli.serving import WorkerChild

    with opened(context) as parts:
        apply_first(parts, apply)
        life = _until_stopped()
        with parts.bus() as bus:
            bus.create_channels()
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
            bus.create_channels()
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
    # One that `up` starts again works by what is applied: a typo made meanwhile is none of it.
    open_project = opened_to_look if child else opened
    with open_project(context) as parts, ExitStack() as stack:
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
            bus.create_channels()
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
    from tidegate.control.lifecycle import Lifecycle
    from tidegate.runtime import settle

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
