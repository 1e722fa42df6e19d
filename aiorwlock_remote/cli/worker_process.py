"""Worker processes of a command, which always end with the command.

A worker gets its plan as the first line on stdin, as JSON: a URL on the command line
would show its password to every user of the host. Later lines are orders; the end of
stdin is the order to finish.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aiorwlock_remote.cli.report import CommandFailed

READY = "ready"
"""First line that a worker prints, when it can take orders."""
LEAVE_TIMEOUT = 5.0
"""Seconds that workers have to end when they are dismissed."""
MAX_LINE_BYTES = 1 << 26
"""Bytes of the longest line that a worker prints: all turns of an hour's bench."""
PR_SET_PDEATHSIG = 1


class WorkerProcess:
    """Controls a process ``python -m module`` from the command that started it.

    ``killed``: True if the command killed the process. Every method but ``aclose``,
    ``kill``, ``resume`` and ``wait`` raises ``CommandFailed`` if the worker has ended.
    """

    def __init__(self, name: str, process: Process, errors: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name: str = name
        self.killed: bool = False
        self._errors = errors
        self._process = process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls, name: str, module: str, plan: str, errors: Path) -> Self:
        """Start a process ``python -m module``, and send it ``plan`` as its first line.

        ``name``: the worker in messages to the user; ``errors``: the file for its
        stderr.
        """
        # A file: a pipe, read at the end only, could fill up and block the worker.
        with errors.open("wb") as file:
            # The path of this very process, and nothing of the current folder (-P): a
            # `json.py` there must not be imported by the worker
            # (test_a_worker_needs_nothing_of_the_current_folder).
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        worker = cls(name, process, errors)
        await worker.send(f"{plan}\n".encode())
        return worker

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def wait_ready(self) -> None:
        """Wait until the worker has printed ``READY`` and takes orders."""
        line = await self.receive()
        if line != READY:
            raise CommandFailed(f"{self.name} said {line!r}")

    async def send(self, line: bytes) -> None:
        """Send a line, which must end with a newline, to the worker's stdin."""
        try:
            await self._stdin.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._failed() from None

    async def receive(self) -> str:
        """Return the next line that the worker prints, without its newline."""
        try:
            return (await self._stdout.receive_until(b"\n", MAX_LINE_BYTES)).decode()
        except (anyio.IncompleteRead, anyio.EndOfStream):
            raise self._failed() from None

    async def dismiss(self) -> None:
        """Order the worker to finish, by closing its stdin."""
        await self._stdin.aclose()

    async def wait_finished(self) -> None:
        """Wait for the end of the process; raise if it failed, unless we killed it."""
        if await self._process.wait() != 0 and not self.killed:
            raise self._failed()

    async def wait(self) -> None:
        await self._process.wait()

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_running:
            self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        self.killed = True
        if self.is_running:
            self._process.kill()
        await self._process.wait()

    async def aclose(self) -> None:
        await self.kill()
        await self._process.aclose()

    def _failed(self) -> CommandFailed:
        # The last line of a traceback names the error.
        lines = self._errors.read_text(errors="replace").splitlines()
        return CommandFailed(f"{self.name} ended early: {lines[-1] if lines else '?'}")


async def end_workers(workers: Sequence[WorkerProcess]) -> list[str]:
    """Dismiss all workers, and kill what does not end soon; return who was killed.

    A cancellation does not shorten this: an interrupted command must not leave
    processes behind, and their grants.
    """
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(LEAVE_TIMEOUT):
            for worker in workers:
                await worker.dismiss()
            for worker in workers:
                await worker.wait()
        killed = [w.name for w in workers if w.killed or w.is_running]
        for worker in workers:
            await worker.aclose()
    return killed


@contextlib.contextmanager
def within(seconds: float, name: str, verb: str) -> Iterator[None]:
    """Limit the time of a block; raise ``CommandFailed("NAME did not VERB in …")``."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise CommandFailed(f"{name} did not {verb} in {seconds:g} s") from None


def end_with_command() -> None:
    """Let this worker process end when the command that started it ends.

    Signals of the terminal are ignored: the command handles them and closes the pipe.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The command may be killed while this process is suspended: SIGCONT lets it read
    # the end of its orders. Not SIGKILL: the signal comes when the thread ends that
    # started this process, and trio does not keep such threads
    # (test_a_worker_outlives_the_thread_that_started_it).
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
