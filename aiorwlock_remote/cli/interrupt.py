"""Signals that end a command which has something to give back first."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, final

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def taken(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Without those that are ignored, as under nohup(1): they stay so."""
    return [s for s in numbers if signal.getsignal(s) != signal.SIG_IGN]


@final
class Interrupt:
    """``by``: the signal that ended the command; None: none did."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Wait for a signal, and cancel the scope that does the work."""
        numbers = taken(ENDING)
        if not numbers:
            return
        with anyio.open_signal_receiver(*numbers) as received:
            async for number in received:
                self.by = number
                scope.cancel()
                return
