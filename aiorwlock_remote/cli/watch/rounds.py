"""Round after round: ask the store, show what it says, pause."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, final

import anyio

from aiorwlock_remote import BackendError, ConfigurationError, Doorman
from aiorwlock_remote.cli.watch.changes import Change
from aiorwlock_remote.cli.watch.view import View

Look = Callable[[], Awaitable[Sequence[Doorman]]]


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


class Show(Protocol):
    """Where people or programs see it."""

    def check(self) -> None:
        """BrokenPipeError if nobody is there any more."""

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """What is new."""

    def paint(self) -> None:
        """The view, or the time, is another now."""

    def leave(self) -> None:
        """This process is to be stopped for a while."""


async def rounds(
    look: Look, view: View, show: Show, every: float, clock: Clock
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
