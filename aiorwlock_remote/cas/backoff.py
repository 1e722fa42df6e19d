"""How long a request waits before its next attempt if it was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.names import Resource

IMMEDIATE_RETRIES = 2
"""Refusals without a pause."""
FIRST_PAUSE, MAX_PAUSE = 0.002, 0.05
"""Seconds of the first pause after that, at most, and of any."""

MAX_CONFLICT_ATTEMPTS = 20
"""Attempts of a request that met another transaction each time."""

T = TypeVar("T")
Later = Callable[[float, Callable[[], None]], None]
GoOn = Callable[[StoredState | None], None]


def retry_pause(refusals: int) -> float:
    """Seconds after so many refusals, at random, and longer each time."""
    if refusals <= IMMEDIATE_RETRIES:
        return 0.0
    ceiling: float = FIRST_PAUSE * 2 ** min(refusals - IMMEDIATE_RETRIES, 10)
    return random() * min(MAX_PAUSE, ceiling)


async def retry_on_conflict(
    work: Callable[[], Awaitable[T]], met: Callable[[Exception], bool]
) -> T:
    """Do it again, a bounded number of times, if it met another transaction.

    A role or a pool may ask for REPEATABLE READ or SERIALIZABLE. Then whichever of two
    transactions comes second is refused, also a look after ``in_transaction``
    (``tests/cas/in_transaction_suite.py``).

    Args:
        work: A statement, and a transaction of its own.
        met: Whether it failed like that, and so has changed nothing.
    """
    for refusals in range(1, MAX_CONFLICT_ATTEMPTS):
        try:
            return await work()
        except Exception as exc:
            if not met(exc):
                raise
        await asyncio.sleep(retry_pause(refusals))
    return await work()


class CasBackoff:
    """The ``Pause`` of a ``CasStepper``: at once, then at random, longer each time.

    At once is best: the refusal's row is as new as what anybody else has. Who pauses
    has to look again, or would come too late each time.
    """

    def __init__(
        self, read: Callable[[Resource], Pending[StoredState]], later: Later
    ) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        self._read = read
        self._later = later

    def __call__(self, resource: Resource, refusals: int, go_on: GoOn) -> None:
        """Go on later, from what was read then."""
        if refusals <= IMMEDIATE_RETRIES:
            go_on(None)
            return
        self._later(retry_pause(refusals), partial(self._look, resource, go_on))

    def _look(self, resource: Resource, go_on: GoOn) -> None:
        def looked(read: Pending[StoredState]) -> None:
            go_on(None if read.error is not None else read.result())

        self._read(resource).add_done_callback(looked)
