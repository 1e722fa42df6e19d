"""``etcd://``: locks in an etcd cluster, whose members agree by majority."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

import anyio

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.cas import EtcdCas, Stored
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.examine import examine
from aiorwlock_remote.backends.etcd.group_commit import GroupCommit
from aiorwlock_remote.backends.etcd.idle_lease import IdleLease
from aiorwlock_remote.backends.etcd.messages import KeyValue
from aiorwlock_remote.backends.etcd.options import Options, options_of
from aiorwlock_remote.backends.etcd.watches import Watches
from aiorwlock_remote.cas import (
    ArrivalNotices,
    CasLockStore,
    CasRenewer,
    PollIntervals,
    StoredStates,
    ThreadLoop,
    VersionClock,
    driver_loop_for,
    submit,
)
from aiorwlock_remote.ports import (
    Address,
    CallbackThread,
    Capability,
    EventLoop,
    Finding,
    PollPolicy,
    Resource,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.etcd")

HOLDER_INTERVAL = 1.0
"""Seconds after which a waiting client reads the lease of a new holder."""
KEYS_PER_REQUEST = 500
SCAN_TIMEOUT = 30.0
"""Seconds for one page of a list."""


class EtcdStore(CasLockStore):
    """Store whose steps are transactions; a watch wakes the waiting clients."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    # A poll only keeps the queue entry, by a write that a majority agrees on.
    poll_policy: PollPolicy = PollPolicy(
        poll_min=3.0, poll_max=4.0, entry_ttl=12.0, claim_window=0.5, sees_ends=True
    )
    # A watch loses nothing while its stream lives, which the stream is asked for.
    poll_intervals: PollIntervals = PollIntervals(hinted=10.0)
    log = log

    def __init__(
        self,
        options: Options,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        self._options = options
        self._tls = None if options.tls is None else options.tls.context(options.where)
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2"])
        # Under trio the driver, which needs asyncio, gets a loop in a thread.
        self._loop = driver_loop_for(event_loop, "etcd")
        self._client = Client(options, self._tls)
        self._versions = VersionClock(options.clock_skew)
        self._idle_lease = IdleLease(self._client, settings.fence_memory)
        arrivals = ArrivalNotices(settings.client_id)
        self._cas = EtcdCas(
            *(self._client, self._loop, event_loop.clock, self._versions),
            *(self._idle_lease, arrivals),
        )
        super().__init__(event_loop, wake, settings, self._cas, arrivals)
        self.steps.arrivals = arrivals
        self._watches = Watches(
            *(self._client, self._loop, settings.client_id),
            *(self._changed, self._watches_work),
        )
        self._hears = False

    async def open(self) -> None:
        """Find out whether a majority answers, and whether the keys can be read."""
        opened = partial(self._client.open, self.settings.connect_timeout)
        try:
            await submit(self._loop, opened)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close()
            raise

    # ---------------------------------------------------------------------- waiting

    def watch(self, resource: Resource) -> None:
        super().watch(resource)
        submit(self._loop, partial(self._watches.add, resource)).log_failure()
        self._hear()

    def unwatch(self, resource: Resource) -> None:
        super().unwatch(resource)
        self._cas.forget(resource)
        submit(self._loop, partial(self._watches.remove, resource)).log_failure()

    def wake_clients(self, resource: Resource, client_ids: tuple[str, ...]) -> None:
        super().wake_clients(resource, client_ids)
        if client_ids != (self.settings.client_id,):
            self._hear()

    def _hear(self) -> None:
        """Be notified of queue entries behind this client from now on.

        Where others have waited, others will wait again, and each release of a holder
        that does not know of them is refused once
        (test_store.py: test_a_release_is_not_refused).
        """
        if not self._hears:
            self._hears = True
            submit(self._loop, partial(self._watches.add, None)).log_failure()

    def _changed(
        self, resource: Resource | None, found: messages.WatchResponse
    ) -> None:
        if resource is None:
            self.arrivals.hears = self.arrivals.hears or found.created
            for change in found.changes:
                if change.found and (told := self._cas.notified(change.found)):
                    self.arrived(*told)
            return
        seat, _, claim = self._options.keys_of(resource)
        changes = {each.key: each.found for each in found.changes}
        named = changes.get(claim)
        if named is not None:
            look = self._cas.claimed(resource, named, self.settings.client_id)
        else:
            # A mutex record that went without a claim was another program's.
            look = found.created or changes.get(seat, 0) is None
            self._cas.forget(resource)
            if seat in changes:
                self.poller.look_within(resource, HOLDER_INTERVAL)
        if look:
            self.poller.look_now(resource)

    def _watches_work(self, works: bool) -> None:  # noqa: FBT001 - a callback
        before, self.poller.hints_come = self.poller.hints_come, works
        self.arrivals.hears = self.arrivals.hears and works
        if before and not works:
            self.poller.look_at_all()

    # ------------------------------------------------------------------ diagnostics

    async def stored(self, resource_type: str | None) -> StoredStates:
        start, end = self._options.range_of(resource_type)
        revision, more = 0, True
        # Of resources of which a key was read, and the other one may follow.
        halves: dict[Resource, list[KeyValue | None]] = {}
        while more:
            request = messages.get_range(start, end, KEYS_PER_REQUEST, revision)
            ask = *(messages.RANGE, request, messages.parse_range), SCAN_TIMEOUT
            page = await submit(self._loop, partial(self._client.call, *ask))
            # All pages are of one revision, so that both keys of a resource fit.
            revision, more = revision or page.revision, page.more
            for found in page.found:
                named = self._options.resource_of(found.key)
                if named is not None:
                    resource, is_doorman = named
                    halves.setdefault(resource, [None, None])[is_doorman] = found
                start = found.key + b"\0"
            for resource in list(halves):
                if not more or self._options.keys_of(resource)[1] < start:
                    seat, doorman = halves.pop(resource)
                    both = Stored(seat, doorman, revision)
                    yield resource, partial(self._cas.state, both, listed=True)

    async def examine(self) -> AsyncGenerator[Finding, None]:
        def alone(number: int) -> Client:
            endpoint = self._options.endpoints[number]
            return Client(replace(self._options, endpoints=(endpoint,)), self._tls)

        examined = partial(examine, self._client, alone, self.event_loop.clock)
        for finding in await submit(self._loop, examined):
            yield finding

    def connections(self) -> dict[str, str]:
        watched = "open" if self.poller.hints_come else "not open"
        return {"etcd": self._client.connection, "watch": watched}

    # --------------------------------------------------------------------- the rest

    def renewer(self) -> CasRenewer:
        # Leases must be renewed although the caller's loop may be blocked.
        thread = CallbackThread(self.event_loop.clock)
        loop = ThreadLoop(thread, "etcd renewals")
        client = Client(self._options, self._tls)
        idle_lease = IdleLease(client, self.settings.fence_memory)
        clock = self.event_loop.clock
        shared = self._versions, idle_lease, self.arrivals
        cas = EtcdCas(client, loop, clock, *shared, GroupCommit(client).transact)
        return self.renewer_over(cas, thread, close=partial(loop.end, client.close))

    async def aclose(self) -> None:
        await super().aclose()
        await self._close()

    async def _close(self) -> None:
        async def closed() -> None:
            self._watches.close()
            self._client.close()

        await submit(self._loop, closed)
        await self._loop.stop()


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> EtcdStore:
    """Open ``etcd://host1,host2,host3/folder``, for the event loop ``loop``.

    Raises:
        ConfigurationError: A part or an option of the URL cannot be used.
        BackendError: No member answers, or the login, version or rights do not fit.
    """
    store = EtcdStore(options_of(address), loop, wake, settings)
    await store.open()
    return store
