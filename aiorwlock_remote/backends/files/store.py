"""``file:///dir``: locks among the processes of one host, or of a shared mount."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial

from aiorwlock_remote.backends.files.connection import FilesConnection
from aiorwlock_remote.backends.files.directory import FileOptions, LockDirectory
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded.mounts import mount_of, recovers_lost_locks
from aiorwlock_remote.embedded.store import EmbeddedStore
from aiorwlock_remote.embedded.watcher import WatchIntervals
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Finding,
    StoreSettings,
    WakeCallback,
)


class FileStore(EmbeddedStore):
    """Store in a directory; each step locks only the files of its resource."""

    def __init__(
        self,
        options: FileOptions,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        connect = partial(FilesConnection, options, loop.clock, settings.client_id)
        # In a shared directory each look goes over the network.
        intervals = WatchIntervals(0.02, 0.25) if options.shared else WatchIntervals()
        super().__init__(connect, "files", loop, wake, settings, intervals)
        self.capabilities: Capability = EmbeddedStore.capabilities
        self._options = options
        if options.shared:
            self.capabilities |= Capability.MANY_HOSTS
            self.capabilities &= ~Capability.NOTIFIES
            self.pace: PollPolicy = PollPolicy(claim_window=0.6)

    async def examine(self) -> AsyncIterator[Finding]:
        options = self._options
        kind = mount_of(options.path).kind or "unknown"
        yield Finding("file system", kind, "has flock and hard links, or says so")
        if options.shared:
            meaning = "leases by the file server's clock, which must not jump"
            yield Finding("shared", "yes", meaning, "note")
            if kind.startswith("nfs") and recovers_lost_locks():
                meaning = "a host that was cut off may write into others' steps"
                yield Finding("nfs.recover_lost_locks", "on", meaning, "bad")
        else:
            yield Finding("shared", "no", "one host; another boot ends all grants")
        if options.sync:
            took = await self._worker.call(lambda _: _sync(options, self._loop))
            value = f"yes, {took * 1e3:.2f} ms"
            yield Finding("sync", value, "fences survive a power cut")
        else:
            meaning = "after a power cut a fence may come again"
            yield Finding("sync", "no", meaning, "bad")


def _sync(options: FileOptions, loop: EventLoop) -> float:
    directory = LockDirectory(options, loop.clock)
    before = time.perf_counter()
    directory.flush_names()
    return time.perf_counter() - before


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> FileStore:
    """Open ``file:///absolute/path/of/a/directory``, for the event loop ``loop``.

    ``wake(resource, seconds)`` is called in ``loop`` when a waiter may be granted
    after so many seconds.

    Raises:
        ConfigurationError: The URL is wrong, or the directory is missing or another
            program's.
        BackendError: The directory cannot be read, written or locked.
    """
    store = FileStore(FileOptions.of(address), loop, wake, settings)
    await store.open()
    return store
