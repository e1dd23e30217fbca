"""Who holds a mutex lives as long as its process, or the JVM that it left behind; no clock says so.

The holders here are real processes, and `cat` on a pipe stands in for the JVM.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidegate.runtime import FlockHolders, RealRuntime, _looked_at

HOLDER = """
import subprocess, sys
from pathlib import Path
from tidegate.runtime import FlockHolders
from tidegate.runtime import RealRuntime

folder, pipe = sys.argv[1:]
holders = FlockHolders(Path(folder), RealRuntime())
descriptor = holders.hold()
child = subprocess.Popen(["cat", pipe], pass_fds=(descriptor,)) if pipe else None
print(holders.me, child.pid if child else 0, flush=True)
sys.stdin.read()
holders.release()
"""


class Holder:
    """A process that holds, and perhaps a child that inherited the lock."""

    def __init__(self, folder: Path, pipe: Path | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder), str(pipe or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.hostid, child = self.process.stdout.readline().split()
        self.child = int(child)
        self._pipe = pipe

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def end_child(self) -> None:
        """Let the child end, and come back when the kernel says that it has."""
        assert self._pipe is not None
        watched = os.pidfd_open(self.child)
        self._pipe.write_text("enough")
        assert select.select([watched], [], [], 30)[0]
        os.close(watched)
        self.child = 0

    def close(self) -> None:
        self.kill()
        if self.child:
            self.end_child()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    with ExitStack() as stack:

        def make(*, child: bool = False) -> Holder:
            pipe = tmp_path / f"pipe-{os.urandom(4).hex()}" if child else None
            if pipe:
                os.mkfifo(pipe)
            holder = Holder(tmp_path / "locks", pipe)
            stack.callback(holder.close)
            return holder

        yield make


class Unhurried(RealRuntime):
    """A clock that does what the test wants instead of sleeping."""

    def __init__(self, instead: Callable[[], None]) -> None:
        self._instead = instead
        self._seconds = 0.0

    def monotonic(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds
        self._instead()


def _nobody_sleeps() -> None:
    raise AssertionError("there was nothing to wait for")


@pytest.fixture
def looker(tmp_path: Path) -> FlockHolders:
    return FlockHolders(tmp_path / "locks", Unhurried(_nobody_sleeps))


def test_a_holder_lives_until_it_is_killed(
    start: Callable[..., Holder], looker: FlockHolders
) -> None:
    holder = start()
    assert looker.lives(holder.hostid)
    holder.kill()
    assert not looker.lives(holder.hostid)


def test_a_holder_that_ended_as_it_should_leaves_nothing(
    start: Callable[..., Holder], looker: FlockHolders, tmp_path: Path
) -> None:
    holder = start()
    holder.end()
    assert not looker.lives(holder.hostid)
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_holder_lives_on_in_the_jvm_that_it_left_behind(
    start: Callable[..., Holder], looker: FlockHolders
) -> None:
    holder = start(child=True)
    holder.kill()
    assert looker.lives(holder.hostid)
    holder.end_child()
    assert not looker.lives(holder.hostid)


def test_what_a_dead_holder_left_running_is_waited_for(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    holder = start(child=True)
    holder.kill()
    looker = FlockHolders(tmp_path / "locks", Unhurried(holder.end_child))
    assert looker.wait_for_end(holder.hostid, 60)
    assert holder.child == 0


def test_the_wait_for_it_has_an_end(start: Callable[..., Holder], tmp_path: Path) -> None:
    holder = start(child=True)
    holder.kill()
    looker = FlockHolders(tmp_path / "locks", Unhurried(lambda: None))
    assert not looker.wait_for_end(holder.hostid, 5)


def test_neither_a_living_holder_nor_another_machine_is_waited_for(
    start: Callable[..., Holder], looker: FlockHolders
) -> None:
    assert not looker.wait_for_end(start().hostid, 60)
    assert not looker.wait_for_end("elsewhere:1:abc", 60)


def test_a_dead_one_without_a_jvm_is_not_waited_for(
    start: Callable[..., Holder], looker: FlockHolders
) -> None:
    holder = start()
    holder.kill()
    assert looker.wait_for_end(holder.hostid, 60)


def test_two_hold_side_by_side(start: Callable[..., Holder], looker: FlockHolders) -> None:
    one, other = start(), start()
    assert one.hostid != other.hostid
    assert looker.lives(one.hostid)
    one.kill()
    assert not looker.lives(one.hostid)
    assert looker.lives(other.hostid)


def test_a_sweep_takes_the_files_of_the_dead_and_no_others(
    start: Callable[..., Holder], looker: FlockHolders, tmp_path: Path
) -> None:
    living, orphaning, dead = start(), start(child=True), start()
    orphaning.kill()
    dead.kill()
    looker.hold()
    left = {path.stem for path in (tmp_path / "locks").iterdir()}
    mine = {holder.rpartition(":")[2] for holder in (living.hostid, orphaning.hostid, looker.me)}
    assert left == mine
    assert looker.lives(living.hostid)
    assert looker.lives(orphaning.hostid)
    assert not looker.lives(dead.hostid)
    looker.release()


def test_a_lock_that_is_taken_while_a_sweep_removes_its_file_is_taken_anew(
    tmp_path: Path,
) -> None:
    taker = FlockHolders(tmp_path, RealRuntime())
    path = tmp_path / f"{taker.me.rpartition(':')[2]}.lock"
    path.touch()
    thread = threading.Thread(target=lambda: taker._take(path))
    with _looked_at(path) as locked:
        assert not locked
        thread.start()
        path.unlink()
    thread.join()
    with _looked_at(path) as locked:
        assert path.exists()
        assert locked


def test_a_process_holds_once_and_gives_back_once(looker: FlockHolders, tmp_path: Path) -> None:
    assert looker.hold() == looker.hold()
    assert looker.lives(looker.me)
    looker.release()
    looker.release()
    assert list((tmp_path / "locks").iterdir()) == []


def test_the_lock_is_not_passed_on_to_those_it_is_not_meant_for(looker: FlockHolders) -> None:
    assert not os.get_inheritable(looker.hold())
    looker.release()


def test_one_on_another_machine_may_always_be_alive(looker: FlockHolders) -> None:
    assert looker.lives("elsewhere:1:abc")


@pytest.mark.parametrize(
    "rest", ["", ":", ":self:x", "::", ":1:../../x", ":99999999999:abc", ":\0:\0", ":x:y:z"]
)
def test_a_hostid_that_nobody_here_wrote_is_dead(looker: FlockHolders, rest: str) -> None:
    assert not looker.lives(f"{socket.gethostname()}{rest}")
