"""``rwlock watch``: scans a store again and again, and shows what changes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import anyio
import click

from aiorwlock_remote import BackendError, ConfigurationError, LockInfo, Locks, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.format import RESOURCE_KEYS
from aiorwlock_remote.cli.options import (
    as_json,
    every_option,
    path_of,
    store_option,
    store_url,
    type_argument,
)
from aiorwlock_remote.cli.signals import INTERRUPTS, not_ignored
from aiorwlock_remote.cli.streams import check_reader
from aiorwlock_remote.cli.watch import state
from aiorwlock_remote.cli.watch.state import WatchOutput, WatchState
from aiorwlock_remote.core.text import plain
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.locks.changes import Change, StoreScanner, pause

MIN_INTERVAL = 0.2
PIPE_RETRY_INTERVAL = 0.05
"""Seconds after which a write to a full pipe is tried again."""

# ------------------------------------------------------------------- scan and show


class FileScanner(StoreScanner):
    """Scanner of the store at a URL; connects anew if the file there was replaced."""

    def __init__(self, url: str, resource_type: str | None = None) -> None:
        super().__init__(connect(url), resource_type)
        self._url = url
        self._file_id: tuple[int, int] | None = None

    async def open(self) -> Locks:
        # A file that was put in place of another is another store, and the open
        # connection would see the old one for ever. A file that is gone must not be
        # created anew either (test_a_store_put_in_place_of_another_is_what_is_seen).
        file_id = _file_id(store_url(self._url, must_be_used=True))
        if file_id != self._file_id:
            await self.aclose()
        locks, self._file_id = await super().open(), file_id
        return locks


def _file_id(url: str) -> tuple[int, int] | None:
    # Device and inode; None for a server.
    path = path_of(parse(url))
    if path is None:
        return None
    status = path.stat()
    return status.st_dev, status.st_ino


class Clock:
    """The clocks of this machine; tests replace this object by virtual time."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class LineOutput(WatchOutput):
    """Writes each change as a line, made by ``form``, to the file descriptor ``fd``."""

    def __init__(self, form: Callable[[Change, datetime], str], fd: int) -> None:
        self._form = form
        self._fd = fd

    def check(self) -> None:
        check_reader(self._fd)

    async def write(self, changes: Sequence[Change], when: datetime) -> None:
        lines = [plain(self._form(change, when)) + "\n" for change in changes]
        left = "".join(lines).encode(errors="backslashreplace")
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        # A write that blocks would keep signals waiting for a slow reader. At most
        # PIPE_BUF bytes do not block if the pipe is ready
        # (test_a_full_pipe_keeps_no_signal_waiting).
        while left:
            if ready.poll(0):
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
            else:
                await anyio.sleep(PIPE_RETRY_INTERVAL)


async def poll_loop(
    scan: Callable[[], Awaitable[Sequence[LockInfo]]],
    view: WatchState,
    output: WatchOutput,
    every: float,
    clock: Clock,
) -> None:
    """Scan the store every ``every`` seconds and show the result; never return.

    ``view`` records each result and ``output`` shows it. A store that does not answer
    is shown as unavailable. Raise ``BackendError`` or ``ConfigurationError`` if the
    first scan fails, and ``BrokenPipeError`` if the reader of the output has left.
    """
    while True:
        output.check()
        began = clock.now()
        view.asked(began)
        try:
            found = await scan()
        except (BackendError, ConfigurationError, OSError) as exc:
            # A store that never answered ends the watch as it ends `rwlock ls`
            # (test_a_store_that_is_not_there_ends_it_as_ls).
            if view.as_of is None:
                raise
            when, wait = clock.wall(), every
            new = view.failed(str(exc), when)
        else:
            when, wait = clock.wall(), pause(clock.now() - began, every)
            new = view.answered(found, clock.now(), when)
        await output.write(new, when)
        output.paint()
        await clock.sleep(wait)


# ----------------------------------------------------------------------- the command


@click.command(
    short_help="See who holds and who waits, live.",
    epilog=f"{state.CHANGE_KEYS}\n{RESOURCE_KEYS}",
)
@store_option
@as_json
@every_option
@type_argument
def watch(
    *, url: str | None, as_json: bool, every: float, resource_type: str | None
) -> int:
    """See what is held or waited for, of all types or of one, until Ctrl-C.

    At a terminal the table of `rwlock ls` is drawn again and again: first what is
    waited for, longest wait first. What changed in the last seconds is bold, a lease
    that ended is red, and the last changes stand below.

    Elsewhere, and with --json, a line is printed for each change. What comes and goes
    between two scans is not seen.

    Each look lists the store once, as `rwlock ls` does; a store that is slow to answer
    is asked less often. A store that stops answering is asked again until it is back.
    """
    check_seconds("--every", every, least=MIN_INTERVAL)
    given = store_url(url, must_be_used=True)
    view, clock = WatchState(), Clock()
    out = sys.__stdout__ or sys.stdout
    if as_json or not out.isatty() or os.environ.get("TERM") in {"dumb", "unknown"}:
        form = state.as_json if as_json else state.as_line
        output: WatchOutput = LineOutput(form, out.fileno())
    else:
        title = f"{parse(given)}  {resource_type or ''}".rstrip()
        output = _screen(view, title, every, clock)
    scanner = FileScanner(given, resource_type)
    return asyncio.run(_watch(scanner, view, output, every, clock))


async def _watch(
    scanner: StoreScanner,
    view: WatchState,
    output: WatchOutput,
    every: float,
    clock: Clock,
) -> int:
    ended_by: signal.Signals | None = None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scanner)
        stack.enter_context(output)
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                nonlocal ended_by
                numbers = not_ignored((*INTERRUPTS, signal.SIGTSTP))
                with anyio.open_signal_receiver(*numbers) as received:
                    async for number in received:
                        if number != signal.SIGTSTP:
                            ended_by = number
                            group.cancel_scope.cancel()
                            return
                        # Ctrl-Z: the shell gets its screen back before we stop.
                        output.leave()
                        os.kill(os.getpid(), signal.SIGSTOP)

            async def repaint() -> None:
                # While a slow store answers, the picture still follows the size of the
                # terminal.
                while True:
                    await clock.sleep(every)
                    if view.as_of is not None:
                        output.paint()

            group.start_soon(listen)
            group.start_soon(repaint)
            await poll_loop(scanner.scan, view, output, every, clock)
    assert ended_by is not None
    return exit_codes.SIGNAL + ended_by


def _screen(view: WatchState, title: str, every: float, clock: Clock) -> WatchOutput:
    # Imported here: lines do not need rich, which is slow to import.
    from aiorwlock_remote.cli.console import RichConsole  # noqa: PLC0415
    from aiorwlock_remote.cli.watch import screen  # noqa: PLC0415

    return screen.ScreenOutput(
        RichConsole(force_terminal=True, highlight=False),
        lambda size: screen.render(view, title, every, clock.now(), size),
    )
