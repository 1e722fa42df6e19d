"""The waiting room: every gate of a ``Locks``, and the one task that watches time."""

from __future__ import annotations

import heapq
import math
from itertools import count

import anyio

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.ports import EventLoop, Store
from aiorwlock_remote.runtime.cleanup import CleanupRetrier
from aiorwlock_remote.runtime.throttle import AcquireThrottle
from aiorwlock_remote.runtime.wait_queue import WaitQueue

MAX_IDLE_QUEUES = 1024
"""Gates that may stand idle, and alarms that nobody may wait for."""


class WakeSignal:
    """Somebody's ear for one resource's bell."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def clear(self) -> None:
        """Listen anew."""
        self._event = anyio.Event()

    def wake(self) -> None:
        """Wake whoever waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Until it rings, or for so long."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class WaitQueueRegistry:
    """Rings, alarms and gates. Lives in the loop's thread."""

    def __init__(
        self, nonce: str, store: Store, host: EventLoop, insisting: CleanupRetrier
    ) -> None:
        """``nonce`` names this process's places in the store."""
        self.insisting = insisting
        self.admission: AcquireThrottle = AcquireThrottle(host.clock)
        self._nonce = nonce
        self._store = store
        self._host = host
        self._queues: dict[Resource, WaitQueue] = {}
        self._sweep_at = MAX_IDLE_QUEUES
        self._knocks: dict[Resource, set[WakeSignal]] = {}
        self._alarms: list[tuple[float, int, WaitQueue | Resource]] = []
        self._armed: dict[WaitQueue | Resource, float] = {}
        """The alarm that counts: a gate's is never later than the gate is due."""
        self._sweep_alarms_at = MAX_IDLE_QUEUES
        self._order = count()
        self._nearer: anyio.Event | None = None
        self._sleeping_until = 0.0
        self._closed = False

    def queue(self, resource: Resource) -> WaitQueue:
        """The gate of a resource, made when first needed."""
        gate = self._queues.get(resource)
        if gate is None:
            self._sweep()
            gate = self._queues[resource] = WaitQueue(
                resource,
                self._nonce,
                self._store,
                self._host.clock,
                self._set_alarm,
                self.insisting,
                self.admission,
            )
        return gate

    def wake(self, resource: Resource, seconds: float) -> None:
        """The store's bell."""
        if self._closed:
            return
        if seconds <= 0:
            for knock in self._knocks.get(resource, ()):
                knock.wake()
            gate = self._queues.get(resource)
            if gate is not None:
                gate.wake()
        else:  # what was hinted before is not so any more
            self._push(self._host.clock.now() + seconds, resource)

    def listen(self, resource: Resource) -> WakeSignal:
        """An ear for this resource's bell; to be given back to ``unlisten``."""
        knock = WakeSignal()
        self._knocks.setdefault(resource, set()).add(knock)
        self._store.watch(resource)
        return knock

    def unlisten(self, resource: Resource, knock: WakeSignal) -> None:
        """Not listened to any more."""
        ears = self._knocks[resource]
        ears.discard(knock)
        if not ears:
            del self._knocks[resource]
            if resource not in self._queues or self._queues[resource].idle:
                self._store.unwatch(resource)

    def close(self) -> None:
        """No more looks; whoever waits was told by somebody else."""
        self._closed = True
        if self._nearer is not None:
            self._nearer.set()

    def sever(self, store: Store) -> None:
        """Turn to that store, and look at nothing any more: in a forked child."""
        self._closed, self._store = True, store
        for gate in self._queues.values():
            gate.sever(store)

    def _sweep(self) -> None:
        if len(self._queues) >= self._sweep_at:
            self._queues = {r: g for r, g in self._queues.items() if not g.idle}
            # So many are needed at once: not to be looked through for each new one.
            self._sweep_at = max(MAX_IDLE_QUEUES, 2 * len(self._queues))

    def _set_alarm(self, gate: WaitQueue) -> None:
        due = gate.due
        if due is None:
            return
        if due < self._armed.get(gate, math.inf):
            self._push(due, gate)
        else:
            self._watch(due)

    def _push(self, due: float, what: WaitQueue | Resource) -> None:
        if len(self._alarms) >= self._sweep_alarms_at:
            self._sweep_alarms()
        self._armed[what] = due
        heapq.heappush(self._alarms, (due, next(self._order), what))
        self._watch(due)

    def _sweep_alarms(self) -> None:
        """Leases may end in a day, and whoever waited for that has left long before."""
        self._armed = {w: due for w, due in self._armed.items() if self._awaited(w)}
        self._alarms = [a for a in self._alarms if self._armed.get(a[2]) == a[0]]
        heapq.heapify(self._alarms)
        self._sweep_alarms_at = max(MAX_IDLE_QUEUES, 2 * len(self._alarms))

    def _awaited(self, what: WaitQueue | Resource) -> bool:
        if isinstance(what, WaitQueue):
            return not what.idle
        gate = self._queues.get(what)
        return what in self._knocks or (gate is not None and not gate.idle)

    def _watch(self, due: float) -> None:
        if self._nearer is None:
            self._nearer = anyio.Event()
            self._host.spawn(self._watch_time)
        elif due < self._sleeping_until:
            self._nearer.set()

    async def _watch_time(self) -> None:
        try:
            while self._alarms and not self._closed:
                self._fire()
                if not self._alarms:
                    break
                self._nearer = anyio.Event()
                self._sleeping_until = self._alarms[0][0]
                pause = self._sleeping_until - self._host.clock.now()
                with anyio.move_on_after(max(0.0, pause)):
                    await self._nearer.wait()
        finally:
            self._nearer = None

    def _fire(self) -> None:
        now = self._host.clock.now()
        for _ in range(len(self._alarms)):  # those set meanwhile have their turn later
            if not self._alarms or self._alarms[0][0] > now:
                return
            due, _, what = heapq.heappop(self._alarms)
            if self._armed.get(what) != due:
                continue  # another one was set since
            del self._armed[what]
            if isinstance(what, Resource):
                self.wake(what, 0)
            else:
                what.look()
                self._set_alarm(what)  # the other side may be due later
