"""One timer for all calls that may take as long.

One for each is dear: a loop keeps, in order, also those that were cancelled, until
their time has come or until they are most of what it keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")


class Deadlines(Generic[C]):
    """Ends connections whose calls are not over in time. All in one asyncio loop."""

    def __init__(self, seconds: float, end: Callable[[C], object]) -> None:
        """``end``: called at once; it ends what is under way, too."""
        self._seconds = seconds
        self._end = end
        self._due: dict[C, float] = {}  # in order: all may take as long
        self._timed = False

    def begin(self, connection: C) -> None:
        """A call begins, the only one there."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self._seconds
        self._time(loop)

    def missed(self, connection: C) -> bool:
        """Whether its call took too long."""
        return connection not in self._due

    def over(self, connection: C) -> None:
        """Its call is."""
        self._due.pop(connection, None)

    def _time(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the first one is looked at when its time has come."""
        if self._due and not self._timed:
            self._timed = True
            loop.call_at(next(iter(self._due.values())), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed = False
        now = loop.time()
        late = next((at for at, due in self._due.items() if due <= now), None)
        if late is None:
            self._time(loop)
            return
        del self._due[late]
        self._time(loop)  # first: whatever comes of this one, others are looked at
        self._end(late)
