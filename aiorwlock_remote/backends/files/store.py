"""``file:///dir``: locks among the processes of one host, or of a shared mount."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import sample

from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.backends.files.directory import (
    TEMPORARY,
    FileOptions,
    LockDirectory,
)
from aiorwlock_remote.backends.files.names import RECORD, SEAT, resource_of_name, stem
from aiorwlock_remote.backends.files.record_file import (
    RecordFile,
    StoredRecord,
    remove_file,
)
from aiorwlock_remote.backends.files.resource_files import (
    MutexFile,
    Outcomes,
    ResourceFiles,
    read_mutex_file,
)
from aiorwlock_remote.backends.files.system import map_error, open_plain_file
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, resource_from_key
from aiorwlock_remote.core.timing import MICROS, PollPolicy, micros
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded.connection import (
    Batch,
    DecodeCache,
    KeptLocked,
    Seen,
    WakeEvent,
)
from aiorwlock_remote.embedded.mounts import mount_of, recovers_lost_locks
from aiorwlock_remote.embedded.store import EmbeddedStore
from aiorwlock_remote.embedded.watcher import WatchIntervals
from aiorwlock_remote.errors import BackendError, BackendUnavailable, BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

MAX_FILES_PER_RUN = 500
"""Files that one purge looks at: steps wait meanwhile."""
ORPHAN_AGE = 60.0
"""Seconds after which a temporary file was left by a process that was killed."""
UNNAMED_RESOURCE = Resource("?", "?")

log: logging.Logger = logging.getLogger("aiorwlock_remote.files")


class FilesConnection:
    """A thread's blocking connection to a directory of locks."""

    def __init__(self, options: FileOptions, clock: Clock, client_id: str = "") -> None:
        self._directory = LockDirectory(options, clock, client_id)
        self._decoded = DecodeCache()

    def open(self, timeout: float) -> None:
        with self._map_errors():
            self._directory.open(timeout)

    def close(self) -> None:
        self._directory.close()

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        del timeout  # the directory is not locked as a whole
        grouped: dict[Resource, list[tuple[int, Command]]] = {}
        for number, (resource, command) in enumerate(batch):
            grouped.setdefault(resource, []).append((number, command))
        numbered: dict[int, Step | Exception] = {}
        for resource, asked in grouped.items():
            outcomes: Outcomes
            files = ResourceFiles(self._directory, stem(resource), self._decoded)
            try:
                with self._map_errors(files):
                    outcomes = files.steps(resource, [command for _, command in asked])
            except BackendError as exc:  # the other resources' files may be fine
                outcomes = [exc] * len(asked)
            numbered |= dict(zip((n for n, _ in asked), outcomes, strict=True))
        return [numbered[number] for number in sorted(numbered)]

    def look(self, resource: Resource) -> Snapshot:
        with self._map_errors():
            return self._look(stem(resource), resource)[1]

    def scan(self, seen: Seen) -> None:
        with self._map_errors():
            names = os.listdir(self._directory.path)  # noqa: PTH208 - names are wanted
        ends = (RECORD, SEAT)
        found = {n.removesuffix(e) for n in names for e in ends if n.endswith(e)}
        kept: KeptLocked | None = None
        for name in sorted(found - seen.keys()):
            try:
                with self._map_errors():
                    seen[name] = self._shown(name)
            except KeptLocked as exc:
                kept = exc
            except BadRecord as exc:  # the other resources are shown all the same
                seen[name] = None
                log_event(log, "bad_record", file=name, error=str(exc))
        if kept is not None:
            raise kept

    def forget(self, memory: float, after: Key = FIRST_KEY) -> Key | None:
        del after
        with self._map_errors():
            purge_directory(self._directory, memory)
        return None

    def alarm(self) -> WakeEvent:
        return self._directory.alarm()

    def version(self) -> object:
        with self._map_errors():
            return self._directory.version()

    def _shown(self, name: str) -> Snapshot | None:
        key, seen = self._look(name, UNNAMED_RESOURCE)
        # The record's key is preferred: the name may have been cut.
        resource = resource_of_name(name) if key is None else resource_from_key(key)
        if resource is None or not (seen.record.updated or seen.seat is not None):
            return None
        return Snapshot(resource, seen.record, seen.seat, seen.now, seen.wall)

    def _look(self, name: str, resource: Resource) -> tuple[str | None, Snapshot]:
        files = ResourceFiles(self._directory, name, self._decoded)
        clock = self._directory.clock
        stored, present = self._read_unlocked(files)
        now, wall = clock.times()
        record, seat = files.interpret(stored, present, now)
        # Where the two files disagree, a step of another process may be under way.
        if (seat and seat.value) != (record and record.seat):
            stored, present = self._read_locked(files)
            now, wall = clock.times()
            record, seat = files.interpret(stored, present, now)
        key = None if stored is None else stored.key
        return key, Snapshot(resource, record or UNUSED_DOORMAN, seat, now, wall)

    def _read_unlocked(
        self, files: ResourceFiles
    ) -> tuple[StoredRecord | None, MutexFile | None]:
        try:
            file = open_plain_file(files.record, os.O_RDONLY)
        except FileNotFoundError:
            return None, read_mutex_file(files.seat)
        try:
            stored = RecordFile(file, files.record, self._directory).read()
        except BadRecord:  # another process may be writing it
            return self._read_locked(files)
        finally:
            os.close(file)
        return stored, read_mutex_file(files.seat)

    def _read_locked(
        self, files: ResourceFiles
    ) -> tuple[StoredRecord | None, MutexFile | None]:
        try:
            with self._directory.locked(files.record, os.O_RDONLY) as file:
                stored = RecordFile(file, files.record, self._directory).read()
                return stored, read_mutex_file(files.seat)
        except FileNotFoundError:
            return None, read_mutex_file(files.seat)

    @contextmanager
    def _map_errors(self, files: ResourceFiles | None = None) -> Iterator[None]:
        def untouched() -> bool:
            return files is None or not files.touched

        try:
            yield
        except BackendError as exc:  # may stand for an error of the system as well
            exc.nothing_done = exc.nothing_done or untouched()
            raise
        except OSError as exc:
            path = self._directory.path
            raise map_error(exc, path, nothing_done=untouched()) from exc


def purge_directory(directory: LockDirectory, memory: float) -> None:
    """Remove unused files from a random sample of the directory.

    These are records of free resources that were not used for ``memory`` seconds, and
    temporary files of processes that were killed.
    """
    names = os.listdir(directory.path)  # noqa: PTH208 - names are what is wanted
    _, wall = directory.clock.times()
    for name in sample(names, min(MAX_FILES_PER_RUN, len(names))):
        path = directory.at(name)
        if name.startswith(TEMPORARY):
            if _age(path, wall) > micros(ORPHAN_AGE):
                remove_file(path)
        elif name.endswith(RECORD) and _age(path, wall) > micros(
            min(memory, ORPHAN_AGE)
        ):
            seat = directory.at(name.removesuffix(RECORD) + SEAT)
            # A record that is kept locked, or damaged, is left for another time.
            with suppress(BackendUnavailable, BadRecord, FileNotFoundError):
                _purge_record(directory, path, seat, wall - micros(memory))


def _purge_record(directory: LockDirectory, path: str, seat: str, since: int) -> None:
    with directory.locked(path, os.O_RDWR) as descriptor:
        file = RecordFile(descriptor, path, directory)
        stored = file.read()
        if stored is not None:
            record = loads(stored.record)
            used = record.grants or record.queue or record.upgrader is not None
            if used or record.updated >= since or read_mutex_file(seat) is not None:
                return
        file.forget()
        log_event(log, "record_purged", logging.DEBUG, file=path)


def _age(path: str, wall: int) -> int:
    try:
        return wall - os.stat(path).st_mtime_ns * MICROS // 10**9  # noqa: PTH116
    except FileNotFoundError:
        return 0


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
            self.poll_policy: PollPolicy = PollPolicy(claim_window=0.6)

    async def examine(self) -> AsyncGenerator[Finding, None]:
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
            took = await self._worker.call(lambda _: _sync(options, self.event_loop))
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
