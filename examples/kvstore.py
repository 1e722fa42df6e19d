"""``kvstore://host:port``: a complete backend over get, compare-and-swap and range.

The server (``kvstore_server.py``) knows three requests, has no clock and sends no
messages. A key has a revision, which is greater than all revisions before it:

* ``get key``: the key's revision and text; 0 and null if the key does not exist;
* ``swap key revision text``: store the text, if the key still has this revision;
* ``range key limit``: the keys after ``key``, with their revisions and texts.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio

from aiorwlock_remote import BackendUnavailable, BadRecord, ConfigurationError
from aiorwlock_remote.cas import (
    CasLockStore,
    CasRenewer,
    CasStore,
    DriverLoop,
    StepTimes,
    StoredState,
    StoredStates,
    SwapReply,
    ThreadLoop,
    VersionClock,
    WrittenAt,
    driver_loop_for,
    submit,
)
from aiorwlock_remote.ports import (
    Address,
    CallbackThread,
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
    loads,
    resource_from_key,
)

PORT = 7171
REQUEST_TIMEOUT = 20.0
"""Seconds after which a request without an answer counts as lost."""
CLOCK_SKEW = 1.0
"""Seconds by which the wall clocks of two hosts may differ; in the URL another one."""
MAX_ANSWER_BYTES = 1 << 24
KEYS_PER_REQUEST = 200


class Client:
    """One connection to the server, in one asyncio loop; sends requests in turn."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *request: object) -> list[Any]:
        """Send a request, and return the answer; raise ``BackendUnavailable``."""
        async with self._turn:
            sent = False
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    if self._streams is None:
                        self._streams = await asyncio.open_connection(
                            *self._address, limit=MAX_ANSWER_BYTES
                        )
                    reader, writer = self._streams
                    sent = True
                    writer.write(json.dumps(request).encode() + b"\n")
                    answer: list[Any] = json.loads(await reader.readuntil())
                    return answer
            except BaseException as exc:
                # A late answer would be taken for that of the next request.
                await self.close()
                if isinstance(exc, OSError | EOFError):
                    what = f"kvstore at {self._address}: {exc}"
                    raise BackendUnavailable(what=what, nothing_done=not sent) from exc
                raise

    async def close(self) -> None:
        """Close the connection; the next request opens another one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


@dataclass(frozen=True)
class Mark:
    """What identifies a version: its revision, 0 for none. And when it was written."""

    revision: int
    written: WrittenAt | None = field(default=None, compare=False)


UNUSED = StoredState(None, None, Mark(0))


class KvCas(CasStore):
    """The server, as one event loop or thread uses it."""

    def __init__(
        self, client: Client, loop: DriverLoop, clock: Clock, versions: VersionClock
    ) -> None:
        super().__init__(clock)
        self._client = client
        self._loop = loop
        self._versions = versions

    def guess(self) -> StoredState:
        return UNUSED

    def times(self, state: StoredState) -> StepTimes:
        mark: Mark = state.mark
        times = self._versions.times(mark.written, self.local_clock)
        return replace(times, floor=times.wall)

    def load(self, resource: Resource) -> Pending[StoredState]:
        return submit(self._loop, partial(self._load, resource))

    async def _load(self, resource: Resource) -> StoredState:
        return self.state(*await self._client.ask("get", resource.key))

    def state(self, revision: int, text: str | None) -> StoredState:
        """Return the state that the server has sent; raise ``BadRecord``."""
        if text is None:
            return UNUSED
        try:
            stored = json.loads(text)
            written = stored["frame"], stored["wall"]
            seat = stored["seat"] and MutexRecord(stored["seat"])
            doorman = loads(stored["doorman"])
        except (ValueError, LookupError, TypeError) as exc:
            raise BadRecord(what="the stored text is none of this backend's") from exc
        seen = self._versions.read(revision, *written, self.local_clock)
        return StoredState(doorman, seat, Mark(revision, seen), order=revision)

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        del wakes  # this server sends no messages

        async def swapped() -> SwapReply:
            fields = {"frame": times.now, "wall": times.wall, "doorman": dumps(record)}
            text = json.dumps(fields | {"seat": seat and seat.value})
            before: Mark = state.mark
            request = "swap", resource.key, before.revision, text
            done, revision, found = await self._client.ask(*request)
            if not done:
                return False, self.state(revision, found)
            mark = Mark(revision, self._versions.wrote(revision, times))
            return True, StoredState(record, seat, mark, order=revision)

        return submit(self._loop, swapped)


class KvStore(CasLockStore):
    """The store of one ``Locks``."""

    capabilities = CasLockStore.capabilities | Capability.OFF_LOOP_RENEWAL
    cas_type = KvCas

    def __init__(
        self,
        address: Address,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        self._address = address.host, address.port or PORT
        # The driver needs asyncio: under trio it gets a loop in a thread.
        self._loop = driver_loop_for(event_loop, "kvstore")
        self._client = Client(*self._address)
        self._versions = VersionClock(address.seconds("clock_skew", CLOCK_SKEW))
        clock = event_loop.clock
        self._cas = self.cas_type(self._client, self._loop, clock, self._versions)
        super().__init__(event_loop, wake, settings, self._cas)

    async def open(self) -> None:
        """Find out whether the server answers; raise ``BackendUnavailable``."""
        try:
            await submit(self._loop, partial(self._client.ask, "get", ""))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close()
            raise

    async def stored(self, resource_type: str | None) -> StoredStates:
        del resource_type  # the server does not select
        key = ""
        while found := await submit(
            self._loop, partial(self._client.ask, "range", key, KEYS_PER_REQUEST)
        ):
            for key, revision, text in found:
                yield resource_from_key(key), partial(self._cas.state, revision, text)

    def renewer(self) -> CasRenewer:
        # Over a connection and a loop of its own, so that leases are renewed although
        # the user's event loop is blocked.
        thread = CallbackThread(self.event_loop.clock)
        loop = ThreadLoop(thread, "kvstore renewals")
        client = Client(*self._address)
        cas = self.cas_type(client, loop, self.event_loop.clock, self._versions)
        return self.renewer_over(cas, thread, close=loop.end)

    async def aclose(self) -> None:
        await super().aclose()
        await self._close()

    async def _close(self) -> None:
        await submit(self._loop, self._client.close)
        await self._loop.stop()


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> KvStore:
    """Open the store; the package's entry point names this function."""
    address.only("clock_skew")
    if not address.host or address.path.strip("/"):
        raise ConfigurationError(
            what="kvstore needs a host", hint="kvstore://host:port"
        )
    store = KvStore(address, loop, wake, settings)
    await store.open()
    return store
