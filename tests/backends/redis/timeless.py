"""For stories that say themselves when the loop turns and what time it is."""

from __future__ import annotations

import asyncio

from aiorwlock_remote.pending import Pending
from tests.standing import StandingClock

PATIENCE = 1.0
STEP = 0.2
"""Seconds: a longer one would be a loop that hung."""
TURNS = 12
"""Turns of the loop: more than one thing needs that leads to the next."""


class Loop(asyncio.SelectorEventLoop):
    """asyncio's, at a time of the story's."""

    def __init__(self, clock: StandingClock) -> None:
        super().__init__()
        self.clock = clock

    def time(self) -> float:
        return self.clock.seconds

    def turn(self, times: int = TURNS) -> None:
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]  # spares idle turns
                return

    def forsake(self, pending: Pending[int]) -> None:
        """Somebody waits for it, and is cancelled."""

        async def wait() -> int:
            return await pending

        task = self.create_task(wait())
        self.turn(1)
        task.cancel()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())


class Asked:
    """A request, and what became of it."""

    def __init__(
        self, number: int, key: bytes, pending: Pending[int], *, must_go: bool = False
    ) -> None:
        self.number = number
        self.must_go = must_go
        self.key = key
        self.pending = pending
        self.answers = 0
        pending.then(self._answered)

    def _answered(self, _: object) -> None:
        self.answers += 1
