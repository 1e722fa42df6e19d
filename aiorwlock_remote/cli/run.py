"""``rwlock run``: run a command while holding a lock, and release the lock after it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import click
from click.core import ParameterSource

from aiorwlock_remote import (
    BackendError,
    Held,
    LockError,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    ReaderLock,
    Semaphore,
    WriterLock,
    connect,
)
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.options import (
    Utf8Text,
    check_whole,
    number_option,
    resource_argument,
    store_option,
    store_url,
)
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.cli.signals import ENDING, SignalReceiver
from aiorwlock_remote.core.permits import MAX_LIMIT
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.client import session_of
from aiorwlock_remote.locks.held import share_ticket, state_of
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.recipes.once import (
    PERIOD_SUFFIX,
    OnceArgs,
    OnceTerms,
    PeriodMark,
    obtain_in_outages,
    once_terms,
)
from aiorwlock_remote.recipes.outage import Outage, may_pass

_IGNORED_BY_PYTHON = tuple(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)
)

_SHELL = "/bin/sh"

log: logging.Logger = logging.getLogger("aiorwlock_remote.once")


class ChildProcess:
    """The running command, in our own process group and with our open files.

    A group of its own would keep the command from reading the terminal; in ours Ctrl-Z
    stops both processes, and Ctrl-C reaches the command exactly once, from the terminal
    (flock(1) and `timeout --foreground` decide likewise). The price: only the command
    itself is sent signals, not the processes that the command starts.

    ``code``: the exit code, negative for a signal; None while the command runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str | bytes],
        mask: Iterable[int],
        on_end: Callable[[], None],
    ) -> None:
        """Start the command; raise ``OSError`` if that fails.

        ``environment``: its variables; ``mask``: signals that are blocked in the
        command; ``on_end``: called without arguments in the event loop when the command
        has ended.
        """
        self._loop, self._on_end = asyncio.get_running_loop(), on_end
        self.code: int | None = None
        # Not by subprocess: a child inherits the signal mask of the thread that starts
        # it, and only posix_spawn sets another without running Python after the fork.
        # If SIGCHLD were ignored, as this process may have inherited it, the kernel
        # would reap the child and its exit code were lost (test_odd_surroundings).
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._pid = _spawn(command, environment, mask)
        # waitpid() blocks, and has a thread of its own.
        threading.Thread(target=self._reap, name="rwlock child", daemon=True).start()

    def send(self, number: int) -> None:
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
    command: Sequence[str], environment: Mapping[str, str | bytes], mask: Iterable[int]
) -> int:
    def spawn(file: str, arguments: list[str]) -> int:
        return os.posix_spawnp(
            file, arguments, environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON
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


# Those of an outer `rwlock run` are not passed on: its ticket is for another lock
# (test_a_ticket_is_not_inherited_from_outside).
_VARIABLES = ("RWLOCK_FENCE", "RWLOCK_RESOURCE", "RWLOCK_TICKET")


@dataclass(kw_only=True)
class LockedCommand:
    """Acquires a lock, runs one command under it, and releases the lock at its end.

    The fields are the options of ``rwlock run``; all times are seconds. ``signals``
    receives what is sent to this process. ``limit``: of the semaphore whose permit is
    held instead of a lock; None: it is a lock. ``once``: how often the command may run;
    None: as often as it gets the lock.
    """

    signals: SignalReceiver
    url: str | None
    target: tuple[str, str]
    command: tuple[str, ...]
    write: bool
    limit: int | None
    timeout: float | None
    lease: float
    reason: str | None
    export_ticket: bool
    conflict_exit_code: int
    grace: float
    once: OnceTerms | None = None

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._ended_by: signal.Signals | None = None
        self._ticket = ""
        self._lost: bool | None = None
        self._loss_printed = False

    async def main(self) -> int:
        url, target = store_url(self.url), check_whole(self.target)
        # Before the mark: it would keep the machines that have the command from running
        # it (test_a_machine_without_the_command).
        if self.once is not None and shutil.which(self.command[0]) is None:
            print_message(f"{self.command[0]}: not found, or not executable")
            return exit_codes.NOT_FOUND
        reason = _name_of(self.command[0]) if self.reason is None else self.reason
        # connect() is entered inside the scope that a signal cancels, and has to be
        # left after that scope: hence the stack.
        async with AsyncExitStack() as stack:
            # A signal ends the wait, and cancelling it leaves the queue
            # (test_signal_while_waiting_leaves_the_queue).
            with anyio.CancelScope() as waiting:
                self.signals.start(lambda number, _: self._end_wait(number, waiting))
                locks = await self._connected(url)
                await stack.enter_async_context(locks)
                obtained = await self._obtain(locks, target, reason)
                if obtained is None:
                    return self.conflict_exit_code
                held = obtained
                mark = self._mark(locks, target)
                if mark is not None and not await mark.begin():
                    await held.release()
                    return self.conflict_exit_code
                if self.export_ticket:
                    self._ticket = share_ticket(held)
            if self._ended_by is not None:
                return exit_codes.SIGNAL + self._ended_by
            return await self._hold(held, mark)
        raise AssertionError("waiting was cancelled by a signal")

    async def _connected(self, url: str) -> Locks:
        """Connect. A command that runs once in a period waits for its store: else a
        server that is restarted at three o'clock would cost the night.
        """
        outage = Outage(log, "once_waits_for_store", "/".join(self.target))
        patience = 0.0 if self.once is None else self.once.patience
        until, told = time.monotonic() + patience, False
        while True:
            try:
                return await connect(url, on_lost=self._on_lost)
            except LockError as exc:
                if not may_pass(exc) or time.monotonic() >= until:
                    raise
                if not told:
                    print_message(
                        f"waiting for the store, {patience:g} s at most: {exc}"
                    )
                told = True
                await outage.pause(exc)

    async def _obtain(
        self, locks: Locks, target: tuple[str, str], reason: str
    ) -> Held | None:
        lock = self._lock(locks, target)
        if self.once is not None:
            # The usual case on all machines but one: nothing that cron mails.
            least = self.timeout or 0.0
            return await obtain_in_outages(
                session_of(locks),
                lock.resource,
                self.once,
                lambda timeout: lock.acquire(max(timeout, least), reason=reason),
            )
        try:
            return await lock.acquire(self.timeout, reason=reason)
        except LockTimeout as exc:
            print_message(str(exc))
            return None

    def _lock(
        self, locks: Locks, target: tuple[str, str]
    ) -> Semaphore | ReaderLock | WriterLock:
        if self.limit is not None:
            return locks.semaphore(*target, self.limit, lease=self.lease)
        lock = locks.rwlock(*target, lease=self.lease)
        return lock.writer if self.write else lock.reader

    def _end_wait(self, number: signal.Signals, waiting: anyio.CancelScope) -> None:
        if number in ENDING and self._ended_by is None:
            self._ended_by = number
            waiting.cancel()

    def _mark(self, locks: Locks, target: tuple[str, str]) -> PeriodMark | None:
        if self.once is None:
            return None
        session, (kind, name) = session_of(locks), target
        resource = session.resource(kind + PERIOD_SUFFIX, name)
        return PeriodMark(session, resource, Options(), self.once)

    async def _hold(self, held: Held, mark: PeriodMark | None) -> int:
        try:
            child = self._start(held)
        except ValueError:  # an empty name, or a NUL in it
            print_message(f"{self.command[0]!r} is not the name of a command")
            return exit_codes.NOT_FOUND
        except OSError as exc:
            print_message(f"{self.command[0]}: {exc.strerror}")
            missing = exc.errno in (errno.ENOENT, errno.ENOTDIR)
            return exit_codes.NOT_FOUND if missing else exit_codes.NOT_EXECUTABLE
        await self._until(lambda: child.code is not None or held.lost is not None)
        if child.code is None and self._is_lost(held):
            await self._stop(child, held)
        await self._until(lambda: child.code is not None)
        if mark is not None:
            await self._record(mark, held, failed=child.code != 0)
        await self._release(held)
        assert child.code is not None
        code = child.code if child.code >= 0 else exit_codes.SIGNAL - child.code
        if self._is_lost(held):
            print_message(self._loss_message(held, code))
            return exit_codes.LOST
        return code

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()
            self._changed.clear()

    def _start(self, held: Held) -> ChildProcess:
        environment: dict[str, str | bytes] = {
            k: v for k, v in os.environ.items() if k not in _VARIABLES
        }
        # Bytes: the locale may have no letters for the name.
        environment["RWLOCK_RESOURCE"] = held.resource.encode()
        environment["RWLOCK_FENCE"] = str(held.fence)
        if self._ticket:
            environment["RWLOCK_TICKET"] = self._ticket
        mask = self.signals.mask_before
        child = ChildProcess(self.command, environment, mask, self._changed.set)

        # What the terminal sends reaches the command without us.
        def forward(number: signal.Signals, from_terminal: bool) -> None:  # noqa: FBT001
            if not from_terminal:
                child.send(number)

        self.signals.handler = forward
        return child

    async def _stop(self, child: ChildProcess, held: Held) -> None:
        print_message(f"{_loss(held)}; the command gets SIGTERM")
        self._loss_printed = True
        child.send(signal.SIGTERM)
        with anyio.move_on_after(self.grace):
            await self._until(lambda: child.code is not None)
        if child.code is None:
            after = f"after {self.grace:g} s"
            print_message(f"the command still runs {after} and gets SIGKILL")
            child.send(signal.SIGKILL)

    async def _record(self, mark: PeriodMark, held: Held, *, failed: bool) -> None:
        # The release reports a loss.
        with contextlib.suppress(LockLost, NotOwner):
            try:
                await mark.end(held, failed=failed)
            except LockError as exc:
                print_message(f"the end is not recorded: {exc}; it may be run again")

    async def _release(self, held: Held) -> None:
        try:
            await held.release()
        except BackendError as exc:
            # The command was protected to its end, so its exit code is the result.
            most = f"{self.lease:g} s at most"
            print_message(f"not released: {exc}; the lock is free in {most}")
            return

    def _loss_message(self, held: Held, code: int) -> str:
        if self._loss_printed:
            return f"the command ended with exit code {code}"
        return f"{_loss(held)}, before the command had ended, with exit code {code}"

    def _is_lost(self, held: Held) -> bool:
        # The command can adopt the exported ticket and release the lock. That is
        # assumed if the store has no such grant, the grant was not broken, and its
        # lease cannot have run out. Decided once: later the lease runs out in any case.
        if held.lost is not None and self._lost is None:
            left = state_of(held).lease.left
            running = left is not None and left > 0
            adopted = bool(self._ticket) and held.lost == "expired" and running
            self._lost = not adopted
        return self._lost is True

    def _on_lost(self, held: Held) -> None:
        # Decided at once, while it can be seen whether the lease still runs.
        self._is_lost(held)
        self._changed.set()


def _name_of(program: str) -> str:
    # The bytes of a file name need not be text.
    return os.fsencode(Path(program).name).decode(errors="replace")


def _loss(held: Held) -> LockLost:
    return LockLost(
        reason=held.lost or "expired",
        resource=held.resource,
        mode=held.mode,
        fence=held.fence,
    )


def _command(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    command = value[1:] if value[:1] == ("--",) else value
    if not command:
        raise click.MissingParameter(ctx=ctx, param=param)
    return command


@click.command(
    short_help="Run a command under a lock.",
    context_settings={"allow_interspersed_args": False},
)
@click.pass_context
@store_option
@click.option(
    "--write/--read",
    default=True,
    help="Hold the lock alone (the default), or with other readers.",
)
@number_option(
    "--limit",
    "Hold one of N permits of the semaphore TYPE/ID instead of a lock: up to N such "
    "commands run at a time, on all machines together.",
    metavar="N",
    kind=click.IntRange(1, MAX_LIMIT),
)
@number_option(
    "--timeout",
    "Seconds to wait for the lock; 0 only tries. Default: as long as it takes.",
)
@number_option(
    "--lease",
    "Seconds after which the lock is free if this process or its host dies.",
    30.0,
)
@click.option(
    "--reason",
    metavar="TEXT",
    type=Utf8Text(),
    help="Shown to others. Default: the command.",
)
@click.option(
    "--export-ticket", is_flag=True, help="Also set RWLOCK_TICKET, which is a secret."
)
@number_option(
    "--conflict-exit-code",
    "Exit code if the lock is not obtained in time.",
    default=exit_codes.CONFLICT,
    metavar="N",
    kind=click.IntRange(0, 255),
)
@number_option("--grace", "Seconds from SIGTERM to SIGKILL when the lock is lost.", 5.0)
@number_option(
    "--once-per", "Run at most once in S seconds, on one of all machines. 1d: a day."
)
@number_option(
    "--at-least",
    "Keep others from running the command for S seconds from its start, also if it is "
    "short, or fails, or this process dies.",
)
@number_option(
    "--at-most",
    "With --once-per: if this process or its host dies, the command may be run again "
    "after S seconds. A live one goes on.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="With --once-per: a run that failed may be repeated in the same period, by "
    "the next rwlock that comes.",
)
@resource_argument
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, required=True, callback=_command
)
def run(
    ctx: click.Context,
    /,
    *,
    once_per: float | None,
    at_least: float | None,
    at_most: float | None,
    retry: bool,
    **options: Any,  # noqa: ANN401 - the options above, by name
) -> int:
    """Run COMMAND while holding the lock TYPE/ID, as flock(1) does on one host.

    \b
        rwlock run --timeout 60 deploy/web -- ./deploy.sh --now

    The lock is renewed while the command runs, and released when the command has ended;
    the exit code is the command's. In the environment of the command are:

    \b
      RWLOCK_RESOURCE  TYPE/ID
      RWLOCK_FENCE     the fencing number: let what the command writes to refuse
                       every number smaller than the highest it has seen
      RWLOCK_TICKET    with --export-ticket: what Locks.adopt() takes, as often as
                       you like: all share this one lock, which rwlock goes on
                       renewing. To release it, or to leave the connect() of an
                       adopter without detach(), ends the lock.

    With --limit 5 the command holds one of five permits, so that up to five such
    commands run at a time, on all machines together:

    \b
        rwlock run --limit 5 api/reports -- ./fetch.sh

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command;
    the lock is released when the command has ended. Ctrl-C reaches it directly: it runs
    in the same process group, with the same terminal. If the lock is lost (the store is
    out of reach for a lease, or the lock was broken) the command gets SIGTERM and,
    after --grace seconds, SIGKILL. If rwlock itself is killed with SIGKILL, the command
    runs on without a lock once the lease has run out; then only the fence protects.

    All times are seconds, or have a unit: 90, 15m, 6h, 1d.

    With --once-per the command runs at most once in so many seconds, on one of all
    machines; the others exit with 0, and print nothing (--conflict-exit-code is another
    code). A run counts from its start, by the store's clock, and also if it failed,
    unless --retry is given; the next one may come a tenth early. `rwlock ls` shows the
    mark, TYPE-period/ID. Such a command does not wait for the lock, unless --timeout is
    given; its --lease is --at-most, or a third of the period, so that it survives an
    outage of the store.

    \b
        0 3 * * *  rwlock run --once-per 1d job/report -- ./report.sh

    The exit code is 75 if the lock was not obtained in time, 76 if it was lost, 126 or
    127 if the command cannot be run, 128 + n if signal n ended it.
    """  # noqa: D301 - click reads the text; \b keeps the lines of a paragraph
    check_seconds("grace", options["grace"])
    once_only = once_per is not None or at_least is not None
    _check_semaphore(ctx, options, once=once_only)
    once = None
    if once_only:
        given: OnceArgs = {"period": once_per, "at_most": at_most, "retry": retry}
        once = once_terms({**given, "at_least": at_least or 0.0})
        _adapt_options(ctx, options, once)
    elif retry or at_most is not None:
        raise ConfigurationError(what="--retry and --at-most are for --once-per")
    # The receiver blocks its signals before the event loop starts any thread.
    job = LockedCommand(signals=SignalReceiver(), once=once, **options)
    return asyncio.run(job.main())


def _check_semaphore(
    ctx: click.Context, options: dict[str, Any], *, once: bool
) -> None:
    if options["limit"] is None:
        return
    side = ctx.get_parameter_source("write") is ParameterSource.COMMANDLINE
    if side or once:
        raise ConfigurationError(
            what="--limit is for a semaphore",
            hint="--read, --write, --once-per and --at-least are for a lock",
        )


def _adapt_options(
    ctx: click.Context, options: dict[str, Any], once: OnceTerms
) -> None:
    """Replace defaults that are not those of a command that runs once in a period."""
    if not options["write"]:
        raise ConfigurationError(what="--once-per and --at-least need --write")
    defaults = {"timeout": 0.0, "lease": once.lease, "conflict_exit_code": 0}
    options |= {
        name: value
        for name, value in defaults.items()
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE
    }
