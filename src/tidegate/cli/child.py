"""The worker that `up` runs as its child: started again when it dies, stopped with its parent."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tidegate.services.lifecycle import Lifecycle

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
