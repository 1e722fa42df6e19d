"""Signals sent to ``rwlock run``, with the knowledge of where they came from.

They are blocked in every thread and taken by one with sigwaitinfo(2), which tells what
Python's handlers do not: whether a process sent the signal or the terminal did. The
command runs in our process group, so what the terminal sends (Ctrl-C, a hang-up) has
reached it already, and forwarding it would make two of one; sudo decides likewise.

Signals that end a command which has something to give back first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable


FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING = FORWARDED[:4]
"""Those that are to end what is going on."""

Handler = Callable[[signal.Signals, bool], None]
"""``handler(number, from_terminal)``, called in the loop."""


@final
class Signals:
    """Takes signals from its creation on; hands them over once it is started.

    To be made before the first thread and the loop. Signals that are ignored, as under
    nohup(1), stay so. What comes before ``start`` is kept.
    """

    def __init__(self) -> None:
        self._taken = {s for s in FORWARDED if signal.getsignal(s) != signal.SIG_IGN}
        self.mask_before: set[int] = signal.pthread_sigmask(
            signal.SIG_BLOCK, self._taken
        )
        self.handler: Handler = _ignore

    def start(self, handler: Handler) -> None:
        """Hand signals, in the loop, to ``handler`` or what it is replaced by."""
        self.handler = handler
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._take, args=(loop,), name="rwlock signals", daemon=True
        ).start()

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end
            while True:
                number, from_terminal = _wait(self._taken)
                loop.call_soon_threadsafe(self._hand_over, number, from_terminal)

    def _hand_over(self, number: int, from_terminal: bool) -> None:  # noqa: FBT001
        self.handler(signal.Signals(number), from_terminal)


def _wait(taken: set[signal.Signals]) -> tuple[int, bool]:
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(taken)
        by_kernel = info.si_code > 0  # SI_USER is 0, SI_QUEUE and so on less
        return info.si_signo, by_kernel and not _for_us_alone(info.si_signo)
    # macOS does not tell: what a terminal can send comes from ours, if we are in front.
    number = signal.sigwait(taken)
    return number, number in (signal.SIGINT, signal.SIGQUIT) and _in_front()


def _for_us_alone(number: int) -> bool:
    """A terminal that hangs up tells the first process of its session, and no other."""
    return number == signal.SIGHUP and os.getsid(0) == os.getpid()


def _in_front() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _ignore(number: signal.Signals, from_terminal: bool) -> None:  # noqa: FBT001
    del number, from_terminal


INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Without those that are ignored, as under nohup(1): they stay so."""
    return [s for s in numbers if signal.getsignal(s) != signal.SIG_IGN]


@final
class Interrupt:
    """``by``: the signal that ended the command; None: none did."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Wait for a signal, and cancel the scope that does the work."""
        numbers = not_ignored(INTERRUPTS)
        if not numbers:
            return
        with anyio.open_signal_receiver(*numbers) as received:
            async for number in received:
                self.by = number
                scope.cancel()
                return
