"""Looks at one store, over one connection for as long as it is the same store.

Round after round: ask the store, show what it says, pause.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, Self, final

import anyio

from aiorwlock_remote import BackendError, ConfigurationError, LockInfo, Locks, connect
from aiorwlock_remote.cli.format import resource_of
from aiorwlock_remote.cli.options import path_of, store
from aiorwlock_remote.cli.watch.state import Change, WatchState
from aiorwlock_remote.core.url import parse

if TYPE_CHECKING:
    from types import TracebackType


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
        place = _place(store(self._url, used=True))
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
