"""Answers on their way from the driver's thread to a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from aiorwlock_remote.ports import EventLoop


class CallbackQueue:
    """Of one loop: woken once for all that lies in it.

    A wake is a system call, in which the driver's thread gives up the interpreter's
    lock: with many requests under way it would wait for the loop at each answer.
    """

    def __init__(self, host: EventLoop) -> None:
        """Empty."""
        self.host: EventLoop = host
        self._calls: deque[tuple[Callable[[Any], object], object]] = deque()
        self._woken = False

    def put(self, function: Callable[[Any], object], answer: object) -> None:
        """Call it in the loop's thread; from any. In the order of the calls."""
        self._calls.append((function, answer))
        if not self._woken:  # else whoever empties it has yet to begin
            self._wake()

    def gather(self, function: Callable[[], object]) -> None:
        """Call it in the loop's thread, and then what was put in meanwhile."""
        self._woken = True  # it is here
        try:
            function()
        finally:
            self._empty()

    def _wake(self) -> None:
        self._woken = True
        self.host.call_soon(self._empty)

    def _empty(self) -> None:
        self._woken = False
        while self._calls:
            function, answer = self._calls.popleft()
            try:
                function(answer)
            except BaseException:
                self._wake()  # for the others; this one is the loop's business
                raise
