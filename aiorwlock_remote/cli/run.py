"""``rwlock run``: a command under a lock.

A command under a lock: wait, run, renew, release.

The command that ``rwlock run`` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import final

import anyio
import click

from aiorwlock_remote import BackendError, Held, LockLost, LockTimeout, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.options import resource_argument, store_option, store_url
from aiorwlock_remote.cli.report import tell
from aiorwlock_remote.cli.resources import whole
from aiorwlock_remote.cli.signals import ENDING, Signals
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.locks.held import share_ticket, state_of

_PYTHON_IGNORES = tuple(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)
)

_SHELL = "/bin/sh"


@final
class Child:
    """A process in our own process group, with our files.

    As under flock(1) and `timeout --foreground`, not in a group of its own: so it may
    read from the terminal, Ctrl-Z stops both of us, and Ctrl-C reaches it exactly once,
    from the terminal. The price: only the command itself is sent signals, not what it
    starts in turn.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        on_end: Callable[[], None],
    ) -> None:
        """Start it with the signal mask ``mask``; ``on_end`` is called in the loop.

        Raises:
            OSError: it cannot be started.
        """
        self._loop, self._on_end = asyncio.get_running_loop(), on_end
        self.code: int | None = None
        # Not subprocess: a child inherits the mask of the thread that starts it, and
        # only posix_spawn sets another without running Python code after the fork.
        # A SIGCHLD that came in ignored would reap it before we can.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._pid = _spawn(command, environment, mask)
        threading.Thread(target=self._reap, name="rwlock child", daemon=True).start()

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._loop.call_soon_threadsafe(self._ended, os.waitstatus_to_exitcode(status))

    def _ended(self, code: int) -> None:
        self.code = code
        self._on_end()


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> int:
    """Start the command as execvp would; return its process id.

    Raises:
        OSError: the command cannot be started.
    """

    def spawn(file: str, arguments: list[str]) -> int:
        return os.posix_spawnp(
            file, arguments, environment, setsigmask=mask, setsigdef=_PYTHON_IGNORES
        )

    try:
        return spawn(command[0], list(command))
    except OSError as exc:
        # A script without "#!" runs under a shell, and under flock(1), because execvp
        # hands what the kernel cannot execute to /bin/sh; posix_spawnp does not
        # (test_a_script_that_names_no_interpreter).
        if exc.errno != errno.ENOEXEC:
            raise
        script = shutil.which(command[0]) or command[0]
        return spawn(_SHELL, [_SHELL, script, *command[1:]])


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
            left = state_of(held).lease.left
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


_HELP = """Run COMMAND while holding the lock TYPE/ID, as flock(1) does on one host.

\b
    rwlock run --timeout 60 deploy/web -- ./deploy.sh --now

The lock is renewed while the command runs and released when it has ended; the exit
code is the command's. In its environment:

\b
  RWLOCK_RESOURCE  TYPE/ID
  RWLOCK_FENCE     the fencing number: have what the command writes to refuse
                   numbers smaller than the highest it has seen
  RWLOCK_TICKET    with --export-ticket: what Locks.adopt() takes, as often as
                   you like: all share this one lock, which we go on renewing.
                   Who releases it after that, or leaves its connect() without
                   detach(), ends it.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command;
the lock is released when it has ended. Ctrl-C reaches it directly: it runs in the
same process group, with the same terminal. If the lock is lost (the store is out of
reach for a lease, or somebody broke it) the command gets SIGTERM and, after --grace
seconds, SIGKILL. Killed with SIGKILL itself, rwlock leaves the command running
without a lock once the lease has run out; then only the fence protects.

The exit code is 75 if the lock was not obtained in time, 76 if it was lost, 126 or
127 if the command cannot be run, 128 + n if signal n ended it.
"""


@click.command(
    help=_HELP,
    short_help="Run a command under a lock.",
    context_settings={"allow_interspersed_args": False},
)
@store_option
@click.option(
    "--write/--read",
    default=True,
    help="Alone (the default), or together with other readers.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    help="Seconds to wait for the lock; 0 only tries. Default: as long as it takes.",
)
@click.option(
    "--lease",
    type=float,
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds after which the lock is free if this process or its host dies.",
)
@click.option("--reason", metavar="TEXT", help="Shown to others. Default: the command.")
@click.option(
    "--export-ticket", is_flag=True, help="Also set RWLOCK_TICKET, which is a secret."
)
@click.option(
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.CONFLICT,
    show_default=True,
    metavar="N",
    help="Exit code if the lock is not obtained in time.",
)
@click.option(
    "--grace",
    type=float,
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds from SIGTERM to SIGKILL when the lock is lost.",
)
@resource_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    *,
    url: str | None,
    target: tuple[str, str],
    command: tuple[str, ...],
    write: bool,
    timeout: float | None,
    lease: float,
    reason: str | None,
    export_ticket: bool,
    conflict_exit_code: int,
    grace: float,
) -> int:
    """See ``_HELP``; the exit code."""
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    check_seconds("grace", grace)
    job = LockedCommandOptions(
        url=store_url(url),
        target=whole(target),
        command=command,
        write=write,
        timeout=timeout,
        lease=lease,
        reason=_name_of(command[0]) if reason is None else reason,
        export_ticket=export_ticket,
        conflict_exit_code=conflict_exit_code,
        grace=grace,
    )
    return asyncio.run(LockedCommand(job, Signals()).main())


def _name_of(program: str) -> str:
    """Of its file, whose bytes need not be text."""
    return os.fsencode(Path(program).name).decode(errors="replace")
