"""What all parts of one ``Locks`` share: its event loop, its store and its counters."""

from __future__ import annotations

import logging
from typing import Literal

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Store, StoreSettings
from aiorwlock_remote.runtime.cleanup import CleanupRetrier, InFlightGrants
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.throttle import AcquireThrottle

WakeCause = Literal["message", "timer", "poll"]
"""Why a waiter asked again.

``message``: the store sent a wake-up. ``timer``: a lease in the way was to end.
``poll``: the poll interval was over.
"""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Runtime:
    """The shared state of one ``Locks``; built before every object that uses it.

    ``store`` is set when the store is open, and read anew for each request: a forked
    child has only this one attribute to replace (``StoreClient.sever``).
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
        """Hand a command to the store, without awaiting.

        What ``Store.step`` raises becomes the failure of the answer: else a caller
        that sends several requests would stop half-way and leave the first ones
        without an owner.
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
