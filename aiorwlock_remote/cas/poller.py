"""Waiting: one poller a process, by plain reads that disturb no transaction.

For stores that tell nobody of changes. While tasks of this process wait, one task reads
the records they wait for: often when our turn is next, seldom when others are before
us, and never more than so many a second for all of them; one look is aimed at the
moment when a lease ends. Only when it is our turn does the bell ring, and a transaction
follows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import uniform

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.transition import next_attempt, peek
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, WakeCallback

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

# A pause is a tenth of the time since the last change: who waited long waits on a bit.
SHORTEST_PAUSE, PAUSE_GROWTH = 0.005, 1.1
MAX_READS_PER_SECOND = 100
"""Reads a second, however many resources are waited for."""
REPEAT_INTERVAL = 1.0
"""Seconds until it rings again for the same reason: the first may have been in vain."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """The longest pauses, in seconds: when our turn is next, and when others' are.

    The claim window of the store is longer than two of the longest, with their jitter.
    """

    near: float = 0.06
    far: float = 0.25


@dataclass(slots=True)
class _PolledResource:
    """``due`` None: a read is under way. ``seen``: who was there and who waited.

    ``rung``: for what, and when.
    """

    due: float | None
    pause: float = SHORTEST_PAUSE
    seen: object = None
    rung: tuple[object, float] = (None, 0.0)


class StatePoller:
    """Rings the bell for watched resources. Lives in the loop's thread."""

    def __init__(
        self,
        read: Callable[[Resource], Pending[StoredState]],
        now_of: Callable[[StoredState], int],
        saw: Callable[[Resource, StoredState], object],
        gate: str,
        host: EventLoop,
        bell: WakeCallback,
        looks: PollIntervals,
    ) -> None:
        """``now_of``: the time of a state's frame. ``saw``: told of what was read."""
        self._looks = looks
        self._read = read
        self._now_of = now_of
        self._saw = saw
        self._gate = gate
        self._host = host
        self._clock = host.clock
        self._bell = bell
        self._watched: dict[Resource, _PolledResource] = {}
        self._nearer: anyio.Event | None = None

    def watch(self, resource: Resource) -> None:
        """Ring for it from now on, and now if there is something already."""
        self._watched[resource] = _PolledResource(self._clock.now())
        if self._nearer is None:
            self._nearer = anyio.Event()
            self._host.spawn(self._run)
        else:
            self._nearer.set()

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._watched.pop(resource, None)

    def close(self) -> None:
        """Nobody waits any more."""
        self._watched.clear()
        if self._nearer is not None:
            self._nearer.set()

    async def _run(self) -> None:
        try:
            while self._watched:
                now = self._clock.now()
                soonest = now + self._looks.far
                for resource, watch in list(self._watched.items()):
                    if watch.due is None:
                        continue
                    if watch.due <= now:
                        self._look(resource, watch)
                    else:
                        soonest = min(soonest, watch.due)
                self._nearer = anyio.Event()
                with anyio.move_on_after(max(0.0, soonest - now)):
                    await self._nearer.wait()
        finally:
            self._nearer = None

    def _look(self, resource: Resource, watch: _PolledResource) -> None:
        watch.due = None
        self._read(resource).add_done_callback(partial(self._looked, resource, watch))

    def _looked(
        self, resource: Resource, watch: _PolledResource, read: Pending[StoredState]
    ) -> None:
        if self._watched.get(resource) is not watch:
            return
        longest, aimed = self._looks.far, math.inf
        if read.error is not None:  # those who wait are told by their own requests
            log_event(log, "watch_failed", logging.DEBUG, error=str(read.error))
            watch.pause = longest
        else:
            state = read.result()
            self._saw(resource, state)
            longest, aimed = self._judge(resource, watch, state)
        watch.pause = min(watch.pause * PAUSE_GROWTH, longest)
        pause = max(watch.pause, len(self._watched) / MAX_READS_PER_SECOND)
        watch.due = self._clock.now() + min(aimed, uniform(0.75, 1.25) * pause)
        if self._nearer is not None:
            self._nearer.set()

    def _judge(
        self, resource: Resource, watch: _PolledResource, state: StoredState
    ) -> tuple[float, float]:
        """Ring if it is time; the longest next pause, and when something will end."""
        record, now = state.record or UNUSED_DOORMAN, self._now_of(state)
        found = next_attempt(record, state.seat, self._gate, now)
        door, _ = peek(record, state.seat, now)
        waits = [place.client_id for place in door.queue]
        value = None if state.seat is None else state.seat.value
        held = record.last, [grant.ticket for grant in door.grants]
        seen = value, held, tuple(waits)
        if seen != watch.seen:  # a place or a lease that is kept is no change
            watch.seen, watch.pause = seen, SHORTEST_PAUSE
        slot = door.upgrader
        if slot is not None:
            waits.insert(0, slot.client_id)
        if self._gate not in waits:  # somebody deleted the row, and our place with it
            found = ("no place", state.mark), 0
        ours = self._gate in waits[:1]
        longest, aimed = self._looks.near if ours else self._looks.far, math.inf
        if found is not None and found[1] > 0:
            aimed = max(SHORTEST_PAUSE, found[1] / MICROS)
        elif found is not None:
            (before, at), clock = watch.rung, self._clock.now()
            if before != found[0] or clock >= at + REPEAT_INTERVAL:
                watch.rung = found[0], clock
                self._bell(resource, 0.0)
        return longest, aimed
