"""Base class of the compare-and-set stores: steps by swaps, waiting by polling."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import CasStore, StoredState, newer_state
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.poller import SHORTEST_PAUSE, PollIntervals, StatePoller
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, LockError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    WAKE_CHANNEL,
    Capability,
    EventLoop,
    HintChannel,
    Snapshot,
    StoreSettings,
    WakeCallback,
)


class CasLockStore(ABC):
    """Base of the stores whose steps are swaps and whose waiting tasks poll.

    A subclass sets ``_steps`` (a ``CasStepper``, which sends the swaps) and
    ``_watcher`` (a ``StatePoller``, which reads the resources that tasks wait for).
    """

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    # The watcher polls for a change by reads. This poll refreshes the queue entry only,
    # by a swap each time, so it is slow.
    pace: PollPolicy = PollPolicy(
        poll_min=1.5, poll_max=2.0, entry_ttl=6.0, claim_window=0.5, sees_ends=True
    )

    looks: PollIntervals = PollIntervals()
    # Whether a waiter that is told to look may read its grant there: it confirms after
    # it has entered, and not before (core/pushed.py).
    pushes_to_told: ClassVar[bool] = False
    _log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

    _steps: CasStepper
    _watcher: StatePoller

    def __init__(
        self, event_loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> None:
        self._event_loop = event_loop
        self._wake = wake
        self._settings = settings
        self._channel: HintChannel | None = None
        self._channel_tried = anyio.Event()
        self._channel_error: Exception | None = None
        self._arrivals = ArrivalNotices(settings.client_id)
        self._read_for_arrival: set[Resource] = set()

    def connections(self) -> dict[str, str]:
        if self._channel is None:
            return {}
        state = "open" if self.hints_come else "lost: waiters poll"
        return {WAKE_CHANNEL: f"{state} ({self._channel.where})"}

    @property
    def hints_come(self) -> bool:
        return self._watcher.hints_come

    @property
    def look_interval(self) -> tuple[float, float] | None:
        if self.hints_come:
            return self.looks.hinted, self.looks.hinted
        return SHORTEST_PAUSE, self.looks.far

    async def use_channel(self, connect: Callable[[], HintChannel]) -> None:
        self._channel = connect()
        self._steps.arrivals = self._arrivals
        self.capabilities |= Capability.NOTIFIES
        if self.pushes_to_told:
            self.capabilities |= Capability.PUSHES
            self.pace = replace(self.pace, pushes=True)
        # Without a limit of its own a channel that is away would cost the store's.
        with anyio.move_on_after(min(1.0, self._settings.connect_timeout / 4)):
            await self._channel_tried.wait()
        error = self._channel_error
        if isinstance(error, LockError) and not isinstance(error, BackendUnavailable):
            raise error

    def channel_changed(self, error: Exception | None) -> None:
        if self._channel is None:  # closed
            return
        works, where = error is None, self._channel.where
        before, self._watcher.hints_come = self._watcher.hints_come, works
        self._arrivals.hears = works
        first, self._channel_error = not self._channel_tried.is_set(), error
        self._channel_tried.set()
        if works == before and not first:
            return
        if error is not None:
            why = str(error)
            log_event(self._log, "wake_channel_lost", server=where, error=why)
        else:
            level = logging.DEBUG if first else logging.INFO
            log_event(self._log, "wake_channel_back", level, server=where)
        self._watcher.look_at_all()

    def hinted(self, text: str | bytes) -> None:
        try:
            kind, number = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return
        if not (isinstance(kind, str) and isinstance(number, int)):
            return
        resource = resource_from_row(kind, number)
        if self._watcher.look_now(resource):
            return
        # Another process has joined the queue of what this one holds. If the release
        # did not start from the present state, its first swap would be refused, while
        # others wait (test_wake_channel.py: test_a_release_is_not_refused).
        known = self._steps.known(resource)
        if known is None or known.seat is None or resource in self._read_for_arrival:
            return
        self._read_for_arrival.add(resource)
        self._watcher.read(resource).add_done_callback(partial(self._arrived, resource))

    def _arrived(self, resource: Resource, read: Pending[StoredState]) -> None:
        self._read_for_arrival.discard(resource)
        if read.error is None:  # else the release finds out by itself
            self._saw(resource, read.result())

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        return self._steps.step(resource, command)

    def watch(self, resource: Resource) -> None:
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        self._watcher.unwatch(resource)

    def _poller(
        self, cas: CasStore, read: Callable[[Resource], Pending[StoredState]]
    ) -> StatePoller:
        return StatePoller(
            read,
            lambda state: cas.times(state).now,
            self._shown_by,
            self._steps.saw,
            self._settings.client_id,
            self._event_loop,
            self._wake,
            self.looks,
            self._hint_missed,
        )

    def _shown_by(self, state: StoredState) -> int | None:
        """Return what the server's clock showed in the answer with this state."""
        del state
        return None

    def _saw(self, resource: Resource, state: StoredState) -> None:
        # A stepper must not start from the state before a renewal.
        latest = newer_state(state, self._steps.known(resource))
        assert latest is not None
        self._steps.saw(resource, latest)

    def _wanted(
        self, kind: str, number: int, resource_type: str | None
    ) -> Resource | None:
        resource = resource_from_row(kind, number)
        return resource if resource_type in (None, resource.type) else None

    def _shown(
        self, resource: Resource, read: Callable[[], StoredState]
    ) -> Snapshot | None:
        try:
            state = read()
        except BadRecord as exc:
            # One damaged record must not hide the others from ``rwlock ls``.
            log_event(self._log, "bad_record", resource=resource.label, error=str(exc))
            return None
        if state.record is None and state.seat is None:
            return None
        return self._snapshot(resource, state)

    @abstractmethod
    def _snapshot(self, resource: Resource, state: StoredState) -> Snapshot: ...

    async def _wait_idle(self) -> None:
        # In a loop: an answer may cause another request.
        while unanswered := self._steps.unanswered():
            for resource in unanswered:
                await self._steps.answered(resource)
        # Only now: the last releases sent hints.
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    def _hint_missed(self) -> None:
        if self._channel is not None:
            self._channel.check()

    def wake_clients(self, resource: Resource, client_ids: tuple[str, ...]) -> None:
        own = self._settings.client_id
        if own in client_ids:
            self._wake(resource, 0.0)
        others = [client_id for client_id in client_ids if client_id != own]
        if others and self._channel is not None:
            self._channel.hint(json.dumps(resource.row), others)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self._event_loop.spawn(after)
