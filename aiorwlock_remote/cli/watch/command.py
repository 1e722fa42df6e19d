"""``rwlock watch``, the command.

Looks at one store, over one connection for as long as it is the same store.

Round after round: ask the store, show what it says, pause.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, Self, final

import anyio
import click

from aiorwlock_remote import BackendError, ConfigurationError, LockInfo, Locks, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.format import RESOURCE_KEYS, resource_of
from aiorwlock_remote.cli.options import (
    as_json,
    path_of,
    store_option,
    store_url,
    type_argument,
)
from aiorwlock_remote.cli.signals import INTERRUPTS, not_ignored
from aiorwlock_remote.cli.watch import state
from aiorwlock_remote.cli.watch.screen import LineOutput
from aiorwlock_remote.cli.watch.state import Change, WatchState
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.url import parse

if TYPE_CHECKING:
    from types import TracebackType

    from aiorwlock_remote.cli.watch.screen import ScreenOutput


@final
class StoreScanner:
    """One scan a look; changes nothing."""

    def __init__(self, url: str, resource_type: str | None) -> None:
        """``url`` is looked at when the first look is asked for."""
        self._url = url
        self._type = resource_type
        self._locks: Locks | None = None
        self._place: object = None

    async def look(self) -> list[LockInfo]:
        """As `rwlock ls` lists them.

        Raises:
            ConfigurationError: there is no such store, or type.
            BackendError: it does not answer.
        """
        # A file that was put in place of another is another store: who has the old one
        # open would see that one for ever. Nor is a file that is gone made anew.
        place = _place(store_url(self._url, used=True))
        if place != self._place:
            await self.aclose()
        if self._locks is None:
            self._locks, self._place = await connect(self._url), place
        async with aclosing(self._locks.list(self._type)) as listed:
            return sorted([seen async for seen in listed], key=resource_of)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        locks, self._locks = self._locks, None
        if locks is not None:
            await locks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _place(url: str) -> object:
    """What tells the file from another of that name; None: a server."""
    path = path_of(parse(url))
    if path is None:
        return None
    there = path.stat()
    return there.st_dev, there.st_ino


Look = Callable[[], Awaitable[Sequence[LockInfo]]]


class Clock(Protocol):
    """Time, for whom it passes."""

    def now(self) -> float:
        """Seconds; never goes back."""

    def wall(self) -> datetime:
        """The time of day."""

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""


@final
class SystemClock:
    """This machine's."""

    def now(self) -> float:
        """As ``Clock``."""
        return time.monotonic()

    def wall(self) -> datetime:
        """As ``Clock``."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """As ``Clock``."""
        await anyio.sleep(seconds)


class WatchOutput(Protocol):
    """Where people or programs see it."""

    def check(self) -> None:
        """BrokenPipeError if nobody is there any more."""

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """What is new."""

    def paint(self) -> None:
        """The view, or the time, is another now."""

    def leave(self) -> None:
        """This process is to be stopped for a while."""


async def poll_loop(
    look: Look, view: WatchState, show: WatchOutput, every: float, clock: Clock
) -> None:
    """Go on without end; one look at a time.

    A store that does not answer is shown as that, unless it never did.

    Raises:
        BackendError, ConfigurationError: at the first look.
        BrokenPipeError: nobody sees it.
    """
    while True:
        show.check()
        began = clock.now()
        view.asks(began)
        try:
            found = await look()
        except (BackendError, ConfigurationError, OSError) as exc:
            if view.as_of is None:
                raise
            when, wait = clock.wall(), every
            new = view.failed(str(exc), when)
        else:
            when, wait = clock.wall(), pause(clock.now() - began, every)
            new = view.answered(found, clock.now(), when)
        await show.tell(new, when)
        show.paint()
        await clock.sleep(wait)


def pause(took: float, every: float) -> float:
    """Seconds until the next look: it begins ``every`` seconds after this one began.

    A store that is slow to answer is left alone for as long as it was asked.
    """
    return max(every - took, took)


MIN_INTERVAL = 0.2
TAKEN = (*INTERRUPTS, signal.SIGTSTP)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    url: str
    resource_type: str | None
    every: float
    as_json: bool


@click.command(
    short_help="See who holds and who waits, live.",
    epilog=f"{state.CHANGE_KEYS}\n{RESOURCE_KEYS}",
)
@store_option
@as_json
@click.option(
    "--every",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds from one look at the store to the next; 0.2 at least.",
)
@type_argument
def watch(
    *, url: str | None, as_json: bool, every: float, resource_type: str | None
) -> int:
    """See what is held or waited for, of all types or of one, until Ctrl-C.

    At a terminal the table of `rwlock ls` is drawn again and again: first what is
    waited for, longest wait first. What changed in the last seconds is bold, a lease
    that ended is red, and the last changes stand below.

    Elsewhere, and with --json, a line is printed for each change. What comes and goes
    between two looks is not seen.

    Each look lists the store once, as `rwlock ls` does; a store that is slow to answer
    is asked less often. One that stops to answer is asked again until it is back.
    """
    check_seconds("--every", every, least=MIN_INTERVAL)
    given = store_url(url, used=True)
    return asyncio.run(_watch(Wanted(given, resource_type, every, as_json)))


async def _watch(wanted: Wanted) -> int:
    view, clock = WatchState(), SystemClock()
    ended_by: signal.Signals | None = None
    async with AsyncExitStack() as stack:
        eye = await stack.enter_async_context(
            StoreScanner(wanted.url, wanted.resource_type)
        )
        show = _show(wanted, view, clock)
        stack.enter_context(show)
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                nonlocal ended_by
                with anyio.open_signal_receiver(*not_ignored(TAKEN)) as received:
                    async for number in received:
                        if number != signal.SIGTSTP:
                            ended_by = number
                            group.cancel_scope.cancel()
                            return
                        show.leave()
                        os.kill(os.getpid(), signal.SIGSTOP)

            async def repaint() -> None:
                """A slow store is no reason not to follow the size of a terminal."""
                while True:
                    await clock.sleep(wanted.every)
                    if view.as_of is not None:
                        show.paint()

            group.start_soon(listen)
            group.start_soon(repaint)
            await poll_loop(eye.look, view, show, wanted.every, clock)
    assert ended_by is not None
    return exit_codes.SIGNAL + ended_by


def _show(wanted: Wanted, view: WatchState, clock: Clock) -> ScreenOutput | LineOutput:
    out = sys.__stdout__ or sys.stdout
    if wanted.as_json:
        return LineOutput(state.as_json, out.fileno())
    if not out.isatty() or os.environ.get("TERM") in {"dumb", "unknown"}:
        return LineOutput(state.as_line, out.fileno())
    # Imported here: lines need no rich.
    from aiorwlock_remote.cli.console import RichConsole  # noqa: PLC0415
    from aiorwlock_remote.cli.watch.screen import (  # noqa: PLC0415
        ScreenOutput,
        render,
    )

    title = f"{parse(wanted.url)}  {wanted.resource_type or ''}".rstrip()
    return ScreenOutput(
        RichConsole(force_terminal=True, highlight=False),
        lambda size: render(view, title, wanted.every, clock.now(), size),
    )
