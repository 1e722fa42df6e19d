"""Reads the driver's sockets in the event loop that sent the requests.

The driver's own reactors read in a thread of theirs and wake the loop for each answer:
two thread switches for each request, and two threads that compete for the interpreter.
Here the loop reads its answers itself, and a request is written to the socket by the
thread that makes it.

Other threads send requests, too: the renewal thread, the driver's heartbeats, and the
thread that opens a connection. And the loop may be blocked for any time. So one more
thread per cluster object, the *helper thread*, does what the loop does not do in time:
it reads what other threads wait for, sends what was left unsent, and reads once more
before it reports that no answer came.
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

from aiorwlock_remote._util.native import Event, Lock
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, SocketEventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

# Seconds that the loop has to read what other threads wait for, before the helper
# thread reads it. Without it both would read each answer, and one of them in vain.
READ_GRACE = 0.02

# Seconds that the loop has to reach the end of a turn, before the helper thread sends
# what was gathered in it (test_a_turn_that_does_not_end_keeps_nothing_back).
TURN_GRACE = 0.2


class ReadableConnection(Protocol):
    """A connection whose socket a ``SocketReader`` reads."""

    def read(self) -> None:
        """Process received bytes. Callable in any thread; one at a time reads."""

    def needs_help(self) -> bool:
        """Return True if the helper thread must read or send for this connection."""

    def close_socket(self) -> None:
        """Close the socket. Called after the event loop stopped watching it."""


class ReadableEventLoop(EventLoop, SocketEventLoop, Protocol):
    """An event loop that can call back when a socket can be read."""


def socket_loop(loop: EventLoop) -> ReadableEventLoop | None:
    """Return ``loop`` if it can watch sockets, else None. For the loop's thread."""
    if not isinstance(loop, SocketEventLoop):
        return None
    one, other = socketpair()
    with one, other, suppress(NotImplementedError):
        loop.reads(one, int)()
        return loop
    return None


class SocketReader:
    """Reads the sockets of one driver Cluster, in the event loop and a helper thread.

    Invariants, with the test that fails without each (test_socket_reader.py unless
    another file is named):

    * An answer that another thread waits for is read even if the loop is blocked, and
      even if the request is sent while the helper thread is going to sleep
      (test_a_request_just_before_the_helper_sleeps_is_seen, test_blocked_loop.py).
    * The helper thread does not read what only the loop waits for
      (test_bytes_read_by_the_loop_are_not_read_again).
    * A request is reported as late only after its socket was read once more
      (test_the_socket_is_read_once_more_before_a_call_times_out).
    * A socket is closed only after the loop stopped watching it, because its number may
      be used again at once (test_a_socket_is_closed_once_the_loop_has_turned_away).
    """

    def __init__(self, loop: ReadableEventLoop, thread: int) -> None:
        """Start the helper thread; ``thread`` is the id of the loop's thread.

        Raises ``BackendUnavailable`` if no thread can be started.
        """
        self.callbacks: CallbackQueue = CallbackQueue(loop)
        # Set by the loop while it sends a request that may wait for the answer of the
        # one before, see `ReadConnection`.
        self.behind: bool = False
        self.loop: ReadableEventLoop = loop
        self._now = loop.clock.now
        self._thread_of_loop = thread
        self._lock = Lock()
        self._connections: dict[ReadableConnection, Callable[[], object] | None] = {}
        self._timers = Timers()
        self._changed = Event()
        self._looks_at = inf
        self._wakes_at = inf
        self._stopped = False
        start_thread(self._run, "cassandra")

    @property
    def in_loop(self) -> bool:
        return threading.get_ident() == self._thread_of_loop

    # ------------------------------------------------------- from any thread

    def add(self, connection: ReadableConnection, sock: socket) -> None:
        with self._lock:
            self._connections[connection] = None
        self.loop.call_soon(self._watch, connection, sock)

    def remove(self, connection: ReadableConnection) -> None:
        """Stop reading a connection; the loop then closes its socket."""
        self.loop.call_soon(self._unwatch, connection)

    def expect(self, within: float = READ_GRACE) -> None:
        """Make the helper thread check all connections in ``within`` seconds.

        It then sends what is unsent, and reads answers that other threads wait for.
        """
        self._looks_at = min(self._looks_at, self._now() + within)
        if self._looks_at < self._wakes_at:
            self._changed.set()

    def later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback()`` in the helper thread in ``seconds`` if not cancelled."""
        due = self._now() + seconds
        timer = self._timers.add(due, callback)
        if due < self._wakes_at:
            self._changed.set()
        return timer

    def close(self) -> None:
        self._stopped = True
        self._changed.set()

    # ------------------------------------------------------- in the loop

    def _watch(self, connection: ReadableConnection, sock: socket) -> None:
        with self._lock:
            if connection in self._connections:
                ended = self.loop.reads(
                    sock, lambda: self.callbacks.gather(connection.read)
                )
                self._connections[connection] = ended

    def _unwatch(self, connection: ReadableConnection) -> None:
        with self._lock:
            ended = self._connections.pop(connection, None)
        if ended is not None:
            ended()
        connection.close_socket()

    # ------------------------------------------------------- in the helper thread

    def _run(self) -> None:
        while not self._stopped:
            # First infinite: a request that comes while the time is computed must set
            # the event, or the thread would sleep past it.
            self._wakes_at = inf
            self._wakes_at = wakes_at = min(self._looks_at, self._timers.first())
            left = wakes_at - self._now()
            if left > 0:
                self._changed.wait(None if left == inf else left)
            self._changed.clear()
            try:
                self._look_after()
            except Exception:  # noqa: BLE001 - it is logged
                log_event(log, "connection_check_failed", logging.ERROR, exc_info=True)

    def _look_after(self) -> None:
        now = self._now()
        late = self._timers.first() <= now
        if now < self._looks_at and not late:
            return
        self._looks_at = inf
        with self._lock:
            connections = list(self._connections)
        # If a request is late, all are read first: its answer may have arrived while
        # the loop was blocked.
        for connection in connections:
            if late or connection.needs_help():
                connection.read()
        # Nothing had arrived yet (test_the_helper_reads_again_while_they_wait).
        if any(connection.needs_help() for connection in connections):
            self.expect()
        for callback in self._timers.due(now):
            try:
                callback()
            except Exception:  # noqa: BLE001 - it is logged
                log_event(log, "timeout_failed", logging.ERROR, exc_info=True)


class CallbackQueue:
    """Thread-safe queue of calls for an event loop; one wake-up runs all of them.

    A wake-up is a system call, in which the driver's thread releases the interpreter's
    lock. With one for each answer, it would wait for the loop's thread each time.
    """

    def __init__(self, loop: EventLoop) -> None:
        self.loop: EventLoop = loop
        self._calls: deque[tuple[Callable[[Any], object], object]] = deque()
        self._woken = False

    def put(self, function: Callable[[Any], object], answer: object) -> None:
        """Queue ``function(answer)`` to run in the event loop. For any thread."""
        self._calls.append((function, answer))
        if not self._woken:  # else the loop has not begun to empty the queue yet
            self._wake()

    def gather(self, function: Callable[[], object]) -> None:
        """Call ``function()``, then all queued calls, in the event loop's thread."""
        self._woken = True  # the loop needs no wake-up for what it puts itself
        try:
            function()
        finally:
            self._empty()

    def _wake(self) -> None:
        self._woken = True
        self.loop.call_soon(self._empty)

    def _empty(self) -> None:
        self._woken = False
        while self._calls:
            function, answer = self._calls.popleft()
            try:
                function(answer)
            except BaseException:
                # The loop reports it; the answers behind it must still be delivered.
                self._wake()
                raise


@final
class Timer:
    """Handle of a callback that is called once, unless ``cancel`` is called before."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Thread-safe queue of callbacks, each with the time it is due at (seconds)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()

    def add(self, due: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def first(self) -> float:
        """Return the time at which the first timer is due, or infinity if none is."""
        with self._lock:
            heap = self._heap
            while heap and heap[0][2].callback is None:
                heapq.heappop(heap)
            return heap[0][0] if heap else inf

    def due(self, now: float) -> list[Callable[[], object]]:
        """Remove the timers due at ``now``; return their callbacks, earliest first."""
        calls: list[Callable[[], object]] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                callback = heapq.heappop(self._heap)[2].callback
                if callback is not None:
                    calls.append(callback)
        return calls
