"""What is to be done if no answer comes in time; set from any thread."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count
from math import inf
from typing import final


@final
class Timer:
    """Calls once, unless it is cancelled before."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Call nothing any more; from any thread."""
        self.callback = None


class Timers:
    """Those that have not been due yet. Any clock, as long as it is one."""

    def __init__(self) -> None:
        """None."""
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()

    def add(self, due: float, callback: Callable[[], object]) -> Timer:
        """Call it then."""
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def first(self) -> float:
        """When the first is due that was not cancelled; infinite: there is none."""
        with self._lock:
            heap = self._heap
            while heap and heap[0][2].callback is None:
                heapq.heappop(heap)
            return heap[0][0] if heap else inf

    def due(self, now: float) -> list[Callable[[], object]]:
        """What is to be called now, in order; it is forgotten."""
        calls: list[Callable[[], object]] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                callback = heapq.heappop(self._heap)[2].callback
                if callback is not None:
                    calls.append(callback)
        return calls
