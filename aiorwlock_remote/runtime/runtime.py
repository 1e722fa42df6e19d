"""``Runtime``, the state that all parts of one ``Locks`` share, and its throttle."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Store, StoreSettings
from aiorwlock_remote.runtime.cleanup import CleanupRetrier, InFlightGrants
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

WakeCause = Literal["message", "timer", "poll"]
"""Why a waiter asked again.

``message``: the store sent a wake-up. ``timer``: a lease in the way was to end.
``poll``: the poll interval was over.
"""

INITIAL_WINDOW = 128
MAX_WINDOW = 512
MIN_WINDOW = 8
"""Most acquire requests under way at a time: at first, and bounds of that number."""
SLOW_REPLY = 1.0
"""Seconds; a reply that takes longer halves the window, each other one adds one."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class AcquireThrottle:
    """Limits the acquire requests under way; other tasks wait for their turn, in order.

    The lease of a grant counts from before its request was sent. If thousands of
    requests were sent at once, the last replies would come when their leases are nearly
    over, and a loop busy with replies would leave the lease keeper's threads no time to
    renew. So the limit (the window) is how many requests the store answers within
    ``SLOW_REPLY`` seconds. It is found by additive increase and multiplicative decrease
    as in TCP's congestion control (RFC 5681); while renewals are late, it is one. Tasks
    with a queue entry send no request and do not count.
    """

    def __init__(self, clock: Clock) -> None:
        self.behind: bool = False
        """Whether renewals are late; set by the lease keeper, from any thread."""
        self._clock = clock
        self._window = INITIAL_WINDOW
        self._halved_at = clock.now()
        self._in_flight = 0
        # Tasks that were let in and have not sent yet: they count as under way, else
        # all that wait would be let in before the first of them runs.
        self._let_in = 0
        self._waiting: dict[Pending[None], None] = {}

    @property
    def full(self) -> bool:
        """Whether the next acquire request has to wait for its turn."""
        return bool(self._waiting) or not self._has_room

    def sent(self, request: Pending[Any]) -> None:
        """Count ``request``, just sent, as under way until its reply comes."""
        self._in_flight += 1
        request.add_done_callback(partial(self._answered, self._clock.now()))

    async def turn(self, seconds: float | None) -> None:
        """Return when a request may be sent, or when ``seconds`` (None: no limit) are
        over. The caller must call ``let_in`` once it has sent its request, or will not
        send it. Raise ``Closed`` if the ``Locks`` was closed meanwhile.
        """
        if log.isEnabledFor(logging.DEBUG):
            waiting, window = len(self._waiting), self._window
            event = "throttled"
            log_event(log, event, logging.DEBUG, waiting=waiting, window=window)
        turn: Pending[None] = Pending()
        self._waiting[turn] = None
        # Room may have come since ``full`` was read, as the keeper's thread sets
        # ``behind``, and then no reply need follow that would let this task in.
        self.let_in()
        has_turn = False
        try:
            with anyio.move_on_after(seconds):
                await turn
            has_turn = True
        finally:
            if turn.done() and turn.error is None:
                self._let_in -= 1
            else:
                self._waiting.pop(turn, None)
            if not has_turn:
                # Cancelled: pass the turn on, or the next task would wait for a reply
                # that may never come (test_throttle.py).
                self.let_in()

    def let_in(self) -> None:
        """Wake the tasks that wait in ``turn``, as many as may send a request now."""
        while self._waiting and self._has_room:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self._let_in += 1
            turn.set_result(None)

    def close(self, error: BaseException) -> None:
        """End all waits: ``turn`` raises ``error`` in every waiting task."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            turn.set_exception(error)

    @property
    def _has_room(self) -> bool:
        return self._in_flight + self._let_in < (1 if self.behind else self._window)

    def _answered(self, sent_at: float, _: object) -> None:
        self._in_flight -= 1
        now = self._clock.now()
        if now - sent_at <= SLOW_REPLY:
            self._window = min(MAX_WINDOW, self._window + 1)
        elif sent_at >= self._halved_at:
            # Replies to requests sent before the window was halved tell nothing about
            # the new window: halving for each of them would go down to the minimum.
            self._window, self._halved_at = max(MIN_WINDOW, self._window // 2), now
        if self._waiting:
            self.let_in()


class Runtime:
    """State that all parts of one ``Locks`` share. ``store`` is set when the store is
    open. Read this attribute anew for each request, because ``StoreClient.sever``
    replaces the store in a forked child process.
    """

    store: Store

    def __init__(self, loop: TaskEventLoop, settings: StoreSettings) -> None:
        self.loop = loop
        self.clock: Clock = loop.clock
        self.client_id: str = settings.client_id
        self.prefix: str = settings.prefix
        self.connect_timeout: float = settings.connect_timeout
        self.in_flight: InFlightGrants = InFlightGrants()
        self.cleanup: CleanupRetrier = CleanupRetrier(loop, self.in_flight)
        self.throttle: AcquireThrottle = AcquireThrottle(loop.clock)
        self.requests_sent: int = 0
        self.requests_retried: int = 0
        self.wakeups: dict[WakeCause, int] = {"message": 0, "timer": 0, "poll": 0}

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Send a command to the store without awaiting; return the reply to come. An
        exception of ``Store.step`` becomes the error of that reply, and is not raised:
        so a caller that sends several requests does not stop half-way.
        """
        self.requests_sent += 1
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "request_sent",
                logging.DEBUG,
                resource=resource.label,
                client_id=self.client_id,
                command=type(command).__name__,
            )
        try:
            return self.store.step(resource, command)
        except Exception as exc:  # noqa: BLE001 - handed to the task that awaits it
            failed: Pending[Reply] = Pending()
            failed.set_exception(exc)
            return failed
