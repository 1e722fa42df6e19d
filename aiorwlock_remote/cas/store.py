"""Base class of the compare-and-set stores: steps by swaps, waiting by polling."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import ClassVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.poller import SHORTEST_PAUSE, PollIntervals, StatePoller
from aiorwlock_remote.cas.port import CasStore, StoredState, StoredStates, newer_state
from aiorwlock_remote.cas.renewer import CasRenewer, wake_no_client
from aiorwlock_remote.cas.stepper import CasStepper, WakeClients
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, LockError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    WAKE_CHANNEL,
    CallbackThread,
    Capability,
    EventLoop,
    HintChannel,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)


class CasLockStore(StoreBase):
    """Base of the stores whose steps are swaps and whose waiting tasks poll.

    A subclass overrides ``stored``, and ``aclose`` to close its connections. It may
    override ``renewer``, ``stepper``, ``snapshot``, ``shown_by``, and ``watch`` if its
    store notifies: then it calls ``poller.look_now`` for the resource that has changed,
    ``arrived`` if only its queue has, and sets ``poller.hints_come`` as long as no
    notification can be lost.

    Attributes:
        cas: Sends the requests of the event loop.
        steps: Carries out commands by swaps of ``cas``; knows the states seen last.
        poller: Reads the resources that tasks wait for, and wakes the tasks.
        arrivals: Which client is notified of a new queue entry.
        poll_intervals: The longest pauses between two reads of a resource.
        pushes_by_hint: Whether a waiter that reads the row after a hint may find its
            grant there: the waiter confirms after it has entered, and not before.
        log: Gets the events of this store.
    """

    capabilities: Capability = (
        Capability.MANY_PROCESSES | Capability.MANY_HOSTS | Capability.HINTS
    )
    # The poller polls for a change by reads. This poll refreshes the queue entry only,
    # by a swap each time, so it is slow.
    poll_policy: PollPolicy = PollPolicy(
        poll_min=1.5, poll_max=2.0, entry_ttl=6.0, claim_window=0.5, sees_ends=True
    )
    poll_intervals: PollIntervals = PollIntervals()
    pushes_by_hint: ClassVar[bool] = False
    log: ClassVar[logging.Logger] = logging.getLogger("aiorwlock_remote.store")

    def __init__(
        self,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        cas: CasStore,
        arrivals: ArrivalNotices | None = None,
    ) -> None:
        """Create the store over an open connection; no request is sent.

        Args:
            event_loop: Event loop of the ``Locks``.
            wake: Called in that loop when a waiter may get a resource.
            settings: The options of ``connect``.
            cas: Connection whose replies come in that loop.
            arrivals: Given if ``cas`` has it as well; None: a new one.
        """
        super().__init__(event_loop, wake, settings)
        self.cas: CasStore = cas
        self.steps: CasStepper = self.stepper(cas, self.wake_clients, self._call_later)
        self.arrivals: ArrivalNotices = arrivals or ArrivalNotices(settings.client_id)
        self.poller: StatePoller = StatePoller(
            cas.peek,
            lambda state: cas.times(state).now,
            self.shown_by,
            self.steps.saw,
            settings.client_id,
            event_loop,
            wake,
            self.poll_intervals,
            self._hint_missed,
        )
        self._channel: HintChannel | None = None
        self._channel_tried = anyio.Event()
        self._channel_error: Exception | None = None
        self._read_for_arrival: set[Resource] = set()

    # ----------------------------------------------------------- for subclasses

    def stored(self, resource_type: str | None) -> StoredStates:
        """Yield each stored resource, with a function that returns its state.

        The function raises ``BadRecord`` if what is stored cannot be read. Resources of
        other types than ``resource_type`` (encoded; None: all types) may be left out.
        """
        raise NotImplementedError

    def stepper(self, cas: CasStore, wakes: WakeClients, later: Later) -> CasStepper:
        """Return a new stepper, for the event loop or for a renewer.

        Called by ``__init__``, too. ``wakes`` is to be called with clients that may
        claim a resource, ``later(seconds, function)`` to pause before a retry.
        """
        return CasStepper(cas, wakes, CasBackoff(cas.peek, later))

    def renewer_over(
        self,
        cas: CasStore,
        thread: CallbackThread,
        close: Callable[[], object] | None = None,
        ready: Callable[[], Pending[None]] | None = None,
        fit: Callable[[int, float], object] | None = None,
    ) -> CasRenewer:
        """Return a renewer that sends its renewals over ``cas``.

        Args:
            cas: Connection whose replies come in ``thread``.
            thread: Runs the callbacks of the replies in the lease keeper's thread.
            close: Called at the end, to close the connection.
            ready: Opens a connection; called first in each ``renew``.
            fit: Called before each batch with the number of resources and the seconds
                left, to set how long each may wait.
        """
        steps = self.stepper(cas, wake_no_client, thread.later)
        # One call for them all: each would wake the loop.
        report = partial(self.event_loop.call_soon, self._saw_all)
        return CasRenewer(thread, steps, self.steps.known, report, close, ready, fit)

    def _saw_all(self, states: Sequence[tuple[Resource, StoredState]]) -> None:
        for resource, state in states:
            self.saw(resource, state)

    def saw(self, resource: Resource, state: StoredState) -> None:
        """Let the next step start from this state, unless a newer one is known."""
        # A stepper must not start from the state before a renewal.
        latest = newer_state(state, self.steps.known(resource))
        assert latest is not None
        self.steps.saw(resource, latest)

    def shown_by(self, state: StoredState) -> int | None:
        """Return what the server's clock showed in the answer with this state, in
        microseconds; None if no such clock ends leases.
        """
        del state
        return None

    def snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        """Return the state as ``look`` and ``scan`` show it."""
        at = self.cas.times(state)
        record = state.record or UNUSED_DOORMAN
        return Snapshot(resource, record, state.seat, at.now, at.wall)

    # ----------------------------------------------------------------- the store

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        return self.steps.step(resource, command)

    def watch(self, resource: Resource) -> None:
        self.poller.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        self.poller.unwatch(resource)

    async def look(self, resource: Resource) -> Snapshot:
        # After all that was asked before, so that a caller sees its own release.
        await self.steps.answered(resource)
        return self.snapshot(resource, await self.cas.peek(resource))

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        async with aclosing(self.stored(resource_type)) as found:
            async for resource, read in found:
                if resource_type not in (None, resource.type):
                    continue
                try:
                    state = read()
                except BadRecord as exc:
                    # One damaged record must not hide the others from ``rwlock ls``.
                    label, error = resource.label, str(exc)
                    log_event(self.log, "bad_record", resource=label, error=error)
                    continue
                if state.record is not None or state.seat is not None:
                    yield self.snapshot(resource, state)

    async def aclose(self) -> None:
        """Stop polling, wait for the replies under way, and close the hint channel."""
        self.poller.close()
        # In a loop: an answer may cause another request.
        while unanswered := self.steps.unanswered():
            for resource in unanswered:
                await self.steps.answered(resource)
        # Only now: the last releases sent hints.
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    def wake_clients(self, resource: Resource, client_ids: tuple[str, ...]) -> None:
        """Wake these clients: this one directly, the others by hints."""
        own = self.settings.client_id
        if own in client_ids:
            self.wake(resource, 0.0)
        others = [client_id for client_id in client_ids if client_id != own]
        if others and self._channel is not None:
            self._channel.hint(json.dumps(resource.row), others)

    # --------------------------------------------------------------------- hints

    def connections(self) -> dict[str, str]:
        if self._channel is None:
            return {}
        state = "open" if self.hints_come else "lost: waiters poll"
        return {WAKE_CHANNEL: f"{state} ({self._channel.where})"}

    @property
    def hints_come(self) -> bool:
        return self.poller.hints_come

    @property
    def poll_interval(self) -> tuple[float, float] | None:
        if self.hints_come:
            return self.poll_intervals.hinted, self.poll_intervals.hinted
        return SHORTEST_PAUSE, self.poll_intervals.far

    async def use_channel(self, connect: Callable[[], HintChannel]) -> None:
        self._channel = connect()
        self.steps.arrivals = self.arrivals
        self.capabilities |= Capability.NOTIFIES
        if self.pushes_by_hint:
            self.capabilities |= Capability.PUSHES
            self.poll_policy = replace(self.poll_policy, pushes=True)
        # Without a limit of its own a channel that is away would cost the store's.
        with anyio.move_on_after(min(1.0, self.settings.connect_timeout / 4)):
            await self._channel_tried.wait()
        error = self._channel_error
        if isinstance(error, LockError) and not isinstance(error, BackendUnavailable):
            raise error

    def channel_changed(self, error: Exception | None) -> None:
        if self._channel is None:  # closed
            return
        works, where = error is None, self._channel.where
        before, self.poller.hints_come = self.poller.hints_come, works
        self.arrivals.hears = works
        first, self._channel_error = not self._channel_tried.is_set(), error
        self._channel_tried.set()
        if works == before and not first:
            return
        if error is not None:
            why = str(error)
            log_event(self.log, "wake_channel_lost", server=where, error=why)
        else:
            level = logging.DEBUG if first else logging.INFO
            log_event(self.log, "wake_channel_back", level, server=where)
        self.poller.look_at_all()

    def hinted(self, text: str | bytes) -> None:
        try:
            kind, number = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return
        if not (isinstance(kind, str) and isinstance(number, int)):
            return
        resource = resource_from_row(kind, number)
        if not self.poller.look_now(resource):
            self.arrived(resource)

    def arrived(self, resource: Resource, state: StoredState | None = None) -> None:
        """Let a release of what this process holds start from the present state.

        Another process has joined the queue: a release from the state before would be
        refused, while others wait (test_wake_channel.py:
        test_a_release_is_not_refused). ``state``: as a message has brought it; None: it
        is read.
        """
        known = self.steps.known(resource)
        if known is None or known.seat is None:
            return  # released since
        if state is not None:
            self.saw(resource, state)
        elif resource not in self._read_for_arrival:
            self._read_for_arrival.add(resource)
            read = self.poller.read(resource)
            read.add_done_callback(partial(self._arrived, resource))

    def _arrived(self, resource: Resource, read: Pending[StoredState]) -> None:
        self._read_for_arrival.discard(resource)
        if read.error is None:  # else the release finds out by itself
            self.saw(resource, read.result())

    def _hint_missed(self) -> None:
        if self._channel is not None:
            self._channel.check()

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self.event_loop.spawn(after)
