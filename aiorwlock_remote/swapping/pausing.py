"""How long whoever was refused waits before the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import random

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.swapping.cas import State

AT_ONCE = 2
"""Refusals without a pause."""
FIRST, LONGEST = 0.002, 0.05
"""Seconds of the first pause after that, at most, and of any."""

Later = Callable[[float, Callable[[], None]], None]
GoOn = Callable[[State | None], None]


class Pausing:
    """The ``Pause`` of a ``Swapping``: at once, then at random, longer each time.

    At once is best: the refusal's row is as new as what anybody else has. Who pauses
    has to look again, or would come too late each time.
    """

    def __init__(
        self, read: Callable[[Resource], Pending[State]], later: Later
    ) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        self._read = read
        self._later = later

    def __call__(self, resource: Resource, refusals: int, go_on: GoOn) -> None:
        """Go on later, from what was read then."""
        if refusals <= AT_ONCE:
            go_on(None)
            return
        ceiling = min(LONGEST, FIRST * 2 ** min(refusals - AT_ONCE, 10))
        self._later(ceiling * random(), partial(self._look, resource, go_on))

    def _look(self, resource: Resource, go_on: GoOn) -> None:
        def looked(read: Pending[State]) -> None:
            go_on(None if read.error is not None else read.result())

        self._read(resource).then(looked)
