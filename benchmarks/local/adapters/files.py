"""Locks that are files: bare ones, as the floor, and ``filelock``.

The bare lock is ``open`` with ``O_CREAT | O_EXCL`` and ``unlink``, in a worker thread
as an event loop needs it. It has no lease, fence, queue or safety, and is not synced to
the disk unless the name of the peer says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

from anyio import Lock, to_thread
from filelock import AsyncFileLock

from benchmarks.harness.lock import Client, Cycle

POLL_INTERVAL = 0.001
"""Seconds between two tries of a waiting process, as a simple lock has it."""


def folder_of(url: str) -> Path:
    """Return the folder of the round, given the URL of the file or folder in it."""
    return Path(url.partition("://")[2].partition("?")[0]).parent


class _BareFile:
    """A lock file for one task of the process at a time."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._path = folder / "bench,1.lock"
        self._folder = os.open(folder, os.O_RDONLY) if sync else None
        self._turn = Lock()

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return self

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        await to_thread.run_sync(self._create)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_thread.run_sync(self._remove)
        self._turn.release()

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder)

    def _create(self) -> None:
        while True:
            try:
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                time.sleep(POLL_INTERVAL)
                continue
            # As long as a ticket: a lock has to write whose it is.
            os.write(file, b"0123456789abcdef0123456789abcdef\n")
            if self._folder is not None:
                os.fsync(file)
                os.fsync(self._folder)
            os.close(file)
            return

    def _remove(self) -> None:
        self._path.unlink()
        if self._folder is not None:
            os.fsync(self._folder)


@asynccontextmanager
async def bare(url: str, lease: float, *, sync: bool = False) -> AsyncIterator[Client]:
    """Open the bare lock; ``sync`` writes its folder to the disk each time."""
    del lease
    file = _BareFile(folder_of(url), sync=sync)
    yield file
    file.close()


bare_synced = partial(bare, sync=True)


class _FileLock:
    """An ``AsyncFileLock`` that is made anew for each cycle.

    One object for several tasks would be re-entrant, and would exclude none of them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: AsyncFileLock | None = None

    async def __aenter__(self) -> None:
        lock = AsyncFileLock(self._path)
        await lock.acquire()
        self._held = lock

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._held is not None
        await self._held.release()


class _FileLocks:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "bench.lock"

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return _FileLock(self._path)


@asynccontextmanager
async def filelock(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the locks of ``filelock`` on one file."""
    del lease
    yield _FileLocks(folder_of(url))
