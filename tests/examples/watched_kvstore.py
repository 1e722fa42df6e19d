"""The example's backend, with watches, and fences that are revisions of the server.

What a store such as etcd needs beyond the example, by public names only.
``python watched_kvstore.py`` is its server.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

from kvstore import Client, KvCas, KvStore, Mark
from kvstore_server import Server, main

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.cas import (
    DriverLoop,
    PollIntervals,
    StepTimes,
    StoredState,
    SwapReply,
    VersionClock,
    relative_fences,
    submit,
    with_fence,
)
from aiorwlock_remote.ports import (
    Address,
    Capability,
    Clock,
    Doorman,
    EventLoop,
    MutexRecord,
    Pending,
    Resource,
    StoreSettings,
    WakeCallback,
    dumps,
)

WATCH_SECONDS = 5.0
"""The server answers a watch after so long, even if nothing has changed."""


class WatchedServer(Server):
    """Knows one request more: ``watch key revision`` waits for another revision."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def swap(self, key: str, revision: int, text: str) -> object:
        self._changed.set()
        self._changed = asyncio.Event()
        return super().swap(key, revision, text)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while line := await reader.readline():
                name, *values = json.loads(line)
                if name == "watch":
                    await self._other_revision(*values)
                    name, values = "get", values[:1]
                writer.write(json.dumps(getattr(self, name)(*values)).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _other_revision(self, key: str, revision: int) -> None:
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                while self.keys.get(key, (0, ""))[0] == revision:
                    await self._changed.wait()
        except TimeoutError:
            return


class RevisionCas(KvCas):
    """The fence of a new phase is the revision at which the phase was stored."""

    def __init__(
        self, client: Client, loop: DriverLoop, clock: Clock, versions: VersionClock
    ) -> None:
        super().__init__(client, loop, clock, versions)
        self._request = client.ask
        # The highest revision of the server that an answer has shown.
        self._reached = 0

    def times(self, state: StoredState) -> StepTimes:
        at = super().times(state)
        return StepTimes(at.now, 0, at.wall, at.sent)

    def state(self, revision: int, text: str | None) -> StoredState:
        self._reached = max(self._reached, revision)
        found = super().state(revision, text)
        if text is None or not json.loads(text)["begins"]:
            return found
        assert found.record is not None
        record = with_fence(found.record, revision)
        return StoredState(record, found.seat, found.mark, found.order)

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        del wakes  # waiters watch
        before: Mark = state.mark
        last = 0 if state.record is None else state.record.last
        # The new revision must not be below the last fence: a step may grant several
        # permits, each with a fence above those before, and is one revision.
        begins = last < record.last <= self._reached + 1
        if begins:
            record = relative_fences(record, last)
        fields = {"frame": times.now, "wall": times.wall, "doorman": dumps(record)}
        fields |= {"seat": seat and seat.value, "begins": begins}
        request = "swap", resource.key, before.revision, json.dumps(fields)

        async def swapped() -> SwapReply:
            done, revision, found = await self._request(*request)
            if not done:
                return False, self.state(revision, found)
            self._reached = max(self._reached, revision)
            mark = Mark(revision, self._versions.wrote(revision, times))
            stored = with_fence(record, revision) if begins else record
            return True, StoredState(stored, seat, mark, order=revision)

        return submit(self._loop, swapped)


class WatchedKvStore(KvStore):
    """Each resource that a task waits for has a watch over a connection of its own."""

    capabilities = KvStore.capabilities | Capability.NOTIFIES
    # A watch loses nothing: reads are for leases and windows that end.
    poll_intervals = PollIntervals(near=0.25, far=0.25, hinted=0.25)
    cas_type = RevisionCas

    def __init__(
        self,
        address: Address,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        super().__init__(address, event_loop, wake, settings)
        self._watched: dict[Resource, Client] = {}
        self.poller.hints_come = True

    def watch(self, resource: Resource) -> None:
        super().watch(resource)
        client = self._watched[resource] = Client(*self._address)
        self._loop.spawn(partial(self._follow, resource, client))

    def unwatch(self, resource: Resource) -> None:
        super().unwatch(resource)
        submit(self._loop, self._watched.pop(resource).close).log_failure()

    async def aclose(self) -> None:
        for resource in list(self._watched):
            self.unwatch(resource)
        await super().aclose()

    async def _follow(self, resource: Resource, client: Client) -> None:
        revision = -1
        while self._watched.get(resource) is client:
            try:
                revision, _ = await client.ask("watch", resource.key, revision)
            except BackendUnavailable:
                revision = -1  # closed, or lost: then the next answer comes at once
                await asyncio.sleep(0.2)
            self._loop.tell(self.poller.look_now, resource)
        await client.close()


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> WatchedKvStore:
    """As that of the example."""
    address.only("clock_skew")
    store = WatchedKvStore(address, loop, wake, settings)
    await store.open()
    return store


if __name__ == "__main__":
    asyncio.run(main(0, WatchedServer()))
