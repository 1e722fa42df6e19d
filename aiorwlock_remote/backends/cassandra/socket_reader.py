"""The driver's connections, read by the loop that asks.

The driver's own reactors read in a thread of theirs and wake the loop for each answer:
two changes of threads a request, and two threads that want the interpreter at the same
time. Here the loop reads its answers by itself, and whoever asks sends at once.

But others ask, too: the keeper, the driver's heartbeats, those who open a connection.
And the loop may be blocked for as long as it likes. So a thread, the *aide*, looks
after what the loop does not see to: it reads what others wait for and nobody has read
for a while, and looks once more before it says that no answer came in time.

Answers on their way from the driver's thread to a loop.

What is to be done if no answer comes in time; set from any thread.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from socket import socket, socketpair
from typing import Any, Protocol, final

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, SocketEventLoop


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


log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

READ_GRACE = 0.02
"""Seconds that the loop has to read what others than itself are waiting for."""
TURN_GRACE = 0.2
"""And to come to the end of a turn, before what it asked there is sent for it."""


class ReadableConnection(Protocol):
    """A connection whose socket is read here."""

    def read(self) -> None:
        """Take what has arrived and hand it on; from any thread, one at a time."""

    def stuck(self) -> bool:
        """Whether others than the loop wait for it, or something is still unsent."""

    def end(self) -> None:
        """Close the socket: nobody looks at it any more."""


class ReadableEventLoop(EventLoop, SocketEventLoop, Protocol):
    """A loop that tells when a socket can be read."""


def socket_loop(host: EventLoop) -> ReadableEventLoop | None:
    """The host, if it does; Windows' usual loop does not. In the loop's thread."""
    if not isinstance(host, SocketEventLoop):
        return None
    one, other = socketpair()
    with one, other, suppress(NotImplementedError):
        host.reads(one, int)()
        return host
    return None


class SocketReader:
    """Reads the connections of one cluster object, in the loop and beside it."""

    def __init__(self, host: ReadableEventLoop, loop: int) -> None:
        """``loop``: its thread's number. The aide's thread begins.

        Raises:
            BackendUnavailable: it could not be started.
        """
        self.inbox: CallbackQueue = CallbackQueue(host)
        self._host = host
        self._loop = loop
        self._lock = threading.Lock()
        self._connections: dict[ReadableConnection, Callable[[], object] | None] = {}
        self._timers = Timers()
        self.behind: bool = False
        """Whether what the loop is asking now has time, see ``ReadConnection``."""
        self._rung = threading.Event()
        self._looks_at = inf
        self._wakes_at = inf
        self._stopped = False
        start_thread(self._run, "cassandra")

    @property
    def in_loop(self) -> bool:
        """Whether it is the loop that asks."""
        return threading.get_ident() == self._loop

    # ------------------------------------------------------- from any thread

    def join(self, connection: ReadableConnection, sock: socket) -> None:
        """Read it from now on."""
        with self._lock:
            self._connections[connection] = None
        self._host.call_soon(self._watch, connection, sock)

    def leave(self, connection: ReadableConnection) -> None:
        """Not any more: as soon as the loop has turned away, its socket is closed."""
        self._host.call_soon(self._unwatch, connection)

    def expect(self, within: float = READ_GRACE) -> None:
        """The loop has to do something; after so many seconds it is looked after."""
        self._looks_at = min(self._looks_at, self._now() + within)
        if self._looks_at < self._wakes_at:
            self._rung.set()

    def later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call it then in the aide's thread, if it is not cancelled before."""
        due = self._now() + seconds
        timer = self._timers.add(due, callback)
        if due < self._wakes_at:
            self._rung.set()
        return timer

    def close(self) -> None:
        """The aide may go; what is left of connections is closed by the loop."""
        self._stopped = True
        self._rung.set()

    # ------------------------------------------------------- in the loop

    def at_end(self, function: Callable[[], object]) -> None:
        """Call it after this turn's tasks have run."""
        self._host.at_end(function)

    def _watch(self, connection: ReadableConnection, sock: socket) -> None:
        with self._lock:
            if connection in self._connections:
                ended = self._host.reads(sock, lambda: self._read(connection))
                self._connections[connection] = ended

    def _unwatch(self, connection: ReadableConnection) -> None:
        with self._lock:
            ended = self._connections.pop(connection, None)
        if ended is not None:
            ended()
        connection.end()

    def _read(self, connection: ReadableConnection) -> None:
        self.inbox.gather(connection.read)

    # ------------------------------------------------------- in the aide's thread

    def _run(self) -> None:
        while not self._stopped:
            self._wakes_at = inf  # who comes after this has been counted rings
            self._wakes_at = wakes_at = min(self._looks_at, self._timers.first())
            left = wakes_at - self._now()
            if left > 0:
                self._rung.wait(None if left == inf else left)
            self._rung.clear()
            try:
                self._look_after()
            except Exception:  # noqa: BLE001 - it is logged
                log_event(
                    log,
                    "a connection could not be looked after",
                    logging.ERROR,
                    exc_info=True,
                )

    def _look_after(self) -> None:
        now = self._now()
        late = self._timers.first() <= now
        if now < self._looks_at and not late:
            return
        self._looks_at = inf
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if late or connection.stuck():
                connection.read()
        if any(connection.stuck() for connection in connections):
            self.expect()
        for callback in self._timers.due(now):
            try:
                callback()
            except Exception:  # noqa: BLE001 - it is logged
                log_event(
                    log, "a request could not be ended", logging.ERROR, exc_info=True
                )

    def _now(self) -> float:
        return self._host.clock.now()
