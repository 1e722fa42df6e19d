"""A command under a lock: wait, run, renew, release."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import final

import anyio

from aiorwlock_remote import BackendError, Held, LockLost, LockTimeout, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.child import Child
from aiorwlock_remote.cli.report import tell
from aiorwlock_remote.cli.signals import ENDING, Signals
from aiorwlock_remote.locks.held import grip_of, share_ticket

_OURS = ("RWLOCK_FENCE", "RWLOCK_RESOURCE", "RWLOCK_TICKET")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedCommandOptions:
    """What was asked for. Seconds."""

    url: str
    target: tuple[str, str]
    command: tuple[str, ...]
    write: bool
    timeout: float | None
    lease: float
    reason: str
    export_ticket: bool
    conflict_exit_code: int
    grace: float


@final
class LockedCommand:
    """One command under one lock."""

    def __init__(self, job: LockedCommandOptions, signals: Signals) -> None:
        self._job = job
        self._signals = signals
        self._changed = asyncio.Event()
        self._ended_by: signal.Signals | None = None
        self._ticket = ""
        self._verdict: bool | None = None
        self._told = False

    async def main(self) -> int:
        """Wait, run, release; the exit code."""
        job = self._job
        async with AsyncExitStack() as stack:
            with anyio.CancelScope() as waiting:
                self._signals.start(lambda number, _: self._end_wait(number, waiting))
                opening = connect(job.url, on_lost=self._wake)
                locks = await stack.enter_async_context(opening)
                lock = locks.rwlock(*job.target, lease=job.lease)
                side = lock.writer if job.write else lock.reader
                try:
                    held = await side.acquire(job.timeout, reason=job.reason)
                except LockTimeout as exc:
                    tell(str(exc))
                    return job.conflict_exit_code
                if job.export_ticket:
                    self._ticket = share_ticket(held)
            if self._ended_by is not None:
                return exit_codes.SIGNAL + self._ended_by
            return await self._hold(held)
        raise AssertionError("waiting was cancelled by a signal")

    def _end_wait(self, number: signal.Signals, waiting: anyio.CancelScope) -> None:
        if number in ENDING and self._ended_by is None:
            self._ended_by = number
            waiting.cancel()

    async def _hold(self, held: Held) -> int:
        try:
            child = self._start(held)
        except ValueError:  # an empty name, or a NUL in it
            tell(f"{self._job.command[0]!r} is not the name of a command")
            return exit_codes.NOT_FOUND
        except OSError as exc:
            tell(f"{self._job.command[0]}: {exc.strerror}")
            missing = exc.errno in (errno.ENOENT, errno.ENOTDIR)
            return exit_codes.NOT_FOUND if missing else exit_codes.NOT_EXECUTABLE
        while child.code is None and held.lost is None:
            await self._changed.wait()
            self._changed.clear()
        if child.code is None and self._lost(held):
            await self._stop(child, held)
        while child.code is None:
            await self._changed.wait()
            self._changed.clear()
        await self._release(held)
        if self._lost(held):
            return exit_codes.LOST
        return child.code if child.code >= 0 else exit_codes.SIGNAL - child.code

    def _start(self, held: Held) -> Child:
        environment = {k: v for k, v in os.environ.items() if k not in _OURS}
        environment["RWLOCK_RESOURCE"] = held.resource
        environment["RWLOCK_FENCE"] = str(held.fence)
        if self._ticket:
            environment["RWLOCK_TICKET"] = self._ticket
        mask = self._signals.mask_before
        child = Child(self._job.command, environment, mask, self._changed.set)

        def forward(number: signal.Signals, from_terminal: bool) -> None:  # noqa: FBT001
            if not from_terminal:
                child.send(number)

        self._signals.handler = forward
        return child

    async def _stop(self, child: Child, held: Held) -> None:
        tell(f"{_loss(held)}; the command gets SIGTERM")
        self._told = True
        child.send(signal.SIGTERM)
        with anyio.move_on_after(self._job.grace):
            while child.code is None:
                await self._changed.wait()
                self._changed.clear()
        if child.code is None:
            tell(f"it still runs after {self._job.grace:g} s and gets SIGKILL")
            child.send(signal.SIGKILL)

    async def _release(self, held: Held) -> None:
        try:
            await held.release()
        except BackendError as exc:  # the work was protected; the lease does the rest
            tell(f"not released: {exc}; it is free in {self._job.lease:g} s at most")
            return
        if self._lost(held) and not self._told:
            tell(f"{_loss(held)}, before the command had ended")

    def _lost(self, held: Held) -> bool:
        """Whether the lock was lost, and not ended by the command that adopted it.

        The command did it if the store knows nothing of the grant, nobody broke it, and
        its lease cannot be over; decided when that is first seen.
        """
        if held.lost is not None and self._verdict is None:
            left = grip_of(held).lease.left
            running = left is not None and left > 0
            adopted = bool(self._ticket) and held.lost == "expired" and running
            self._verdict = not adopted
        return self._verdict is True

    def _wake(self, held: Held) -> None:
        self._lost(held)
        self._changed.set()


def _loss(held: Held) -> LockLost:
    return LockLost(
        reason=held.lost or "expired",
        resource=held.resource,
        mode=held.mode,
        fence=held.fence,
    )
