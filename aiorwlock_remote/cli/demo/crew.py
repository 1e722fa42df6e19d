"""The worker processes: started, given orders, stopped, killed, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aiorwlock_remote.cli.demo.orders import GO_ON, HOLD, READY, Holding, Plan
from aiorwlock_remote.cli.failure import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

MODULE = "aiorwlock_remote.cli.demo.worker"
START, FINISH, LEAVE = 30.0, 30.0, 5.0
"""Seconds that all together may take to start, to finish, and to leave a demo that
is interrupted: who is killed then leaves a grant or a place behind."""


@final
class Member:
    """One worker."""

    def __init__(self, plan: Plan, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name: str = plan.name
        self.ledger: str = plan.ledger
        self._errors = _errors(plan)
        self._process = process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self.killed: bool = False

    @classmethod
    async def start(cls, plan: Plan) -> Self:
        """Start its process and hand it the plan."""
        with _errors(plan).open("wb") as errors:
            # The path of this very process, and nothing of the current folder's.
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        member = cls(plan, process)
        await member._say(json.dumps(asdict(plan)).encode() + b"\n")
        return member

    async def ready(self) -> None:
        """It works now."""
        line = await self._line()
        if line != READY:
            raise CommandFailed(f"{self.name} said {line!r}")

    async def hold(self) -> Holding:
        """Order it to hold at its next write, and wait until it does."""
        await self._say(HOLD)
        return Holding(**json.loads(await self._line()))

    async def go_on(self) -> None:
        """The end of ``hold``."""
        await self._say(GO_ON)

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
        """No more orders: it finishes its turn and ends."""
        await self._stdin.aclose()

    async def ended(self) -> None:
        """It has ended, well or killed by us."""
        if await self._process.wait() != 0 and not self.killed:
            raise self._failed()

    async def left(self) -> None:
        """It has ended, however."""
        await self._process.wait()

    async def _say(self, line: bytes) -> None:
        try:
            await self._stdin.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._failed() from None

    async def _line(self) -> str:
        try:
            return (await self._stdout.receive_until(b"\n", 10_000)).decode()
        except (anyio.IncompleteRead, anyio.EndOfStream):
            raise self._failed() from None

    def _failed(self) -> CommandFailed:
        told = self._errors.read_text(errors="replace").splitlines()
        return CommandFailed(f"{self.name} ended early: {told[-1] if told else '?'}")


@final
class Crew:
    """All workers, from start to end. ``killed``: who did not end by himself."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self.members: list[Member] = []
        self.killed: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        try:
            with _within(START, "start"):
                for plan in self._plans:
                    self.members.append(await Member.start(plan))
                for member in self.members:
                    await member.ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def finish(self) -> None:
        """Let all finish their turns and end.

        Raises:
            CommandFailed: one ended otherwise, or not in time.
        """
        with _within(FINISH, "finish"):
            for member in self.members:
                await member.dismiss()
            for member in self.members:
                await member.ended()

    async def _end(self) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(LEAVE):
                for member in self.members:
                    await member.dismiss()
                for member in self.members:
                    await member.left()
            self.killed = tuple(m.name for m in self.members if m.killed or m.runs)
            for member in self.members:
                await member.aclose()


@contextmanager
def _within(seconds: float, what: str) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise CommandFailed(f"the workers did not {what} in {seconds:g} s") from None


def _errors(plan: Plan) -> Path:
    return Path(plan.folder) / f"{plan.name}.err"
