"""For histories that say themselves when the loop turns and what time it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aiorwlock_remote._util.pending import Pending
from tests.fixed_clock import StandingClock

PATIENCE = 1.0
STEP = 0.2
"""Seconds: a longer one would be a loop that hung."""
TURNS = 12
"""Turns of the loop: more than one thing needs that leads to the next."""


class Loop(asyncio.SelectorEventLoop):
    """asyncio's, at a time of the history's."""

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
        pending.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self.answers += 1


class Defects(logging.Handler):
    """What our code, or a history's called back by it, raised, and was only logged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[object] = []
        self._log = logging.getLogger("aiorwlock_remote")
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(record.exc_info[1])

    def close(self) -> None:
        self._log.removeHandler(self)
        super().close()


class InVirtualTime:
    """One who is asked: a link, or a cluster's. Its servers answer in a subclass."""

    closes: Callable[[], Coroutine[Any, Any, None]]
    """Closes it."""

    longest: float = 3.5 * PATIENCE
    """Seconds until each call has its outcome."""
    long: int = 30
    """Rounds after which all is found and made again."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StandingClock()
        self.loop = Loop(self.clock)
        self.asked: list[Asked] = []
        self.channels: set[bytes] = set()
        self.closing: asyncio.Task[None] | None = None
        self.defects = Defects()

    def everything_goes_its_way(self) -> None:
        """What was sent is carried out, what was answered comes."""
        raise NotImplementedError

    def connects_by(self, open_: Callable[[], Awaitable[None]]) -> None:
        async def connect() -> None:
            opening = asyncio.ensure_future(open_())
            while not opening.done():
                await asyncio.sleep(0)
                self.everything_goes_its_way()
            opening.result()

        self.loop.run_until_complete(connect())

    def every_task_is_cancelled(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.turn(1)  # what is asked before that may be nobody's, too

    def we_close(self) -> None:
        if self.closing is None:
            self.closing = self.loop.create_task(self.closes())
            self.loop.turn(1)  # who is cancelled before the first step closes nothing

    @rule(times=st.integers(1, 4))
    def the_loop_turns(self, times: int) -> None:
        self.loop.turn(times)

    @rule(steps=st.sampled_from([1, 1, 2, 10]))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.seconds += STEP
            self.loop.turn(4)

    @rule()
    def all_goes_well(self) -> None:
        for _ in range(3):
            self.everything_goes_its_way()
            self.clock.seconds += STEP / 4
            self.loop.turn()

    def all_goes_well_for_long(self) -> None:
        for _ in range(self.long):
            self.all_goes_well()
            self.clock.seconds += STEP

    def patience_ends(self) -> None:
        self.time_passes(int(self.longest / STEP))

    def is_closed(self) -> None:
        """In time."""
        closing = self.closing or self.loop.create_task(self.closes())
        self.patience_ends()
        assert closing.done()

    @invariant()
    def nothing_went_wrong(self) -> None:
        assert not self.defects.found

    def is_over(self) -> None:
        try:
            if self.closing is None and self.asked:
                self.comes_to_rest()
            self.ends()
            self.nothing_went_wrong()
        finally:
            self.is_left()

    def comes_to_rest(self) -> None:
        """All is well again, and all is as it must be then."""
        raise NotImplementedError

    def ends(self) -> None:
        """Nothing is left of it."""
        raise NotImplementedError

    def is_left(self) -> None:
        """As it is."""
        self.defects.close()
        self.loop.close()
