"""Receives the signals that end a command, and those that ``rwlock run`` passes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable

import anyio

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end ``demo``, ``watch`` and ``bench``."""


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those of the signals that this process does not ignore."""
    return [s for s in numbers if signal.getsignal(s) != signal.SIG_IGN]


class Interrupt:
    """Waits for a signal that ends this program; ``by``: the one received, or None."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    @contextlib.asynccontextmanager
    async def ends_block(self) -> AsyncIterator[None]:
        """Context whose block is cancelled by a signal that ends this program."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.listen, group.cancel_scope)
            yield
            group.cancel_scope.cancel()

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Wait for a signal that ends this program, then cancel ``scope``."""
        numbers = not_ignored(INTERRUPTS)
        # No signal can end the command (test_where_all_are_ignored_nothing_ends_it).
        if not numbers:
            return
        with anyio.open_signal_receiver(*numbers) as received:
            async for number in received:
                self.by = number
                scope.cancel()
                return


# ----------------------------------------------------------------------- rwlock run

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING = FORWARDED[:4]
"""Signals that also end the wait for the lock."""

Handler = Callable[[signal.Signals, bool], None]
"""``handler(number, from_terminal)``, called in the event loop for each signal."""


class SignalReceiver:
    """Receives the signals sent to ``rwlock run``, and whether the terminal sent them.

    The signals are blocked in every thread, and one thread takes them by
    sigwaitinfo(2), which says what Python's handlers do not: whether a process or the
    terminal sent the signal. The command runs in our process group, so what the
    terminal sends (Ctrl-C, a hang-up) has reached the command already. To forward it
    too would signal the command twice (test_ctrl_c_reaches_the_command_once).

    The receiver must be created before the first thread and the event loop: a thread
    inherits the mask of its creator. Signals that come before ``start`` are kept.
    """

    def __init__(self) -> None:
        self._taken = set(not_ignored(FORWARDED))
        self.mask_before: set[int] = signal.pthread_sigmask(
            signal.SIG_BLOCK, self._taken
        )
        self.handler: Handler = lambda _, __: None

    def start(self, handler: Handler) -> None:
        """From now on call ``handler(signal, from_terminal)`` in the event loop."""
        self.handler = handler
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._take, args=(loop,), name="rwlock signals", daemon=True
        ).start()

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end
            while True:
                number, from_terminal = _wait(self._taken)
                loop.call_soon_threadsafe(self._handle, number, from_terminal)

    def _handle(self, number: int, from_terminal: bool) -> None:  # noqa: FBT001
        self.handler(signal.Signals(number), from_terminal)


def _wait(taken: set[signal.Signals]) -> tuple[int, bool]:
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(taken)
        by_kernel = info.si_code > 0  # SI_USER is 0, SI_QUEUE and so on less
        # A terminal that hangs up signals the leader of its session alone.
        for_us_alone = info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
        return info.si_signo, by_kernel and not for_us_alone
    # macOS does not say who sent a signal: what a terminal can send is assumed to come
    # from the terminal, if we are its foreground process group.
    number = signal.sigwait(taken)
    return number, number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground()


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
