"""Processes that work for a command: given a plan and orders, and always ended.

The plan is their first line on stdin, as JSON: a URL on the command line would show
passwords to everybody. Later lines are orders; end of file is the last of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aiorwlock_remote.cli.report import CommandFailed

READY = "ready"
"""What a helper says first, when it can take orders."""
PR_SET_PDEATHSIG = 1
MAX_LINE_BYTES = 1 << 26
"""Bytes of a line that a helper says."""


class WorkerProcess:
    """A process ``python -m module``, seen from the command.

    ``errors``: a file for what it writes to stderr. ``killed``: by us.
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
        """Start its process and hand it the plan.

        Raises:
            CommandFailed: it ended at once.
        """
        with errors.open("wb") as file:
            # The path of this very process, and nothing of the current folder's.
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        helper = cls(name, process, errors)
        await helper.say(f"{plan}\n".encode())
        return helper

    async def ready(self) -> None:
        """It takes orders now.

        Raises:
            CommandFailed: it ended, or said something else.
        """
        line = await self.line()
        if line != READY:
            raise CommandFailed(f"{self.name} said {line!r}")

    async def say(self, line: bytes) -> None:
        """Give it an order.

        Raises:
            CommandFailed: it has ended.
        """
        try:
            await self._stdin.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._failed() from None

    async def line(self) -> str:
        """The next line it says.

        Raises:
            CommandFailed: it ended before.
        """
        try:
            return (await self._stdout.receive_until(b"\n", MAX_LINE_BYTES)).decode()
        except (anyio.IncompleteRead, anyio.EndOfStream):
            raise self._failed() from None

    @property
    def runs(self) -> bool:
        """It has not ended."""
        return self._process.returncode is None

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT, if it has not ended."""
        if self.runs:
            self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL; it is dead when this returns, stopped or not."""
        self.killed = True
        if self.runs:
            self._process.kill()
        await self._process.wait()

    async def aclose(self) -> None:
        """Dead, and its pipes closed."""
        await self.kill()
        await self._process.aclose()

    async def dismiss(self) -> None:
        """No more orders: it finishes what it does and ends."""
        await self._stdin.aclose()

    async def ended(self) -> None:
        """It has ended, well or killed by us.

        Raises:
            CommandFailed: it ended otherwise.
        """
        if await self._process.wait() != 0 and not self.killed:
            raise self._failed()

    async def left(self) -> None:
        """It has ended, however."""
        await self._process.wait()

    def _failed(self) -> CommandFailed:
        told = self._errors.read_text(errors="replace").splitlines()
        return CommandFailed(f"{self.name} ended early: {told[-1] if told else '?'}")


@contextlib.contextmanager
def within(seconds: float, whoever: str, what: str) -> Iterator[None]:
    """The block is left in that time.

    Raises:
        CommandFailed: ``whoever`` did not do ``what``.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise CommandFailed(f"{whoever} did not {what} in {seconds:g} s") from None


# ------------------------------------------------------------- in the process


def serve() -> None:
    """What a terminal sends is the command's. We end when it does: by end of file.

    Even if it is killed while we are stopped: then we are woken, where the system can
    do that. Not killed, as the signal is sent when the *thread* ends that started us:
    trio starts processes in threads of which it does not keep many.
    """
    for ours in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ours, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
