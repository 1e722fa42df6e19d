"""Locks that are files: the floor under them, what syncing it costs, and ``filelock``.

The floor is ``open`` with ``O_CREAT | O_EXCL`` and ``unlink``, in a worker thread as an
event loop needs it. Who waits in another process polls each millisecond. No lease, no
fence, no queue, no safety; and nothing is on disk, but for the one that syncs.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import cast

from anyio import Lock, to_thread
from filelock import AsyncFileLock

from benchmarks.peer import ASYNCIO, Cycle, Peer

POLL = 0.001
"""Seconds between two looks of a process that waits: what a simple lock does."""


class Bare:
    """A file that is there, or not; one task of the process at a time."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        """``sync``: the directory is on disk each time."""
        self._path = folder / "bench,1.lock"
        self._folder = os.open(folder, os.O_RDONLY) if sync else None
        self._turn = Lock()

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        await to_thread.run_sync(self._make)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_thread.run_sync(self._remove)
        self._turn.release()

    def close(self) -> None:
        """Close the directory."""
        if self._folder is not None:
            os.close(self._folder)

    def _make(self) -> None:
        while True:
            try:
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                time.sleep(POLL)
                continue
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
async def _bare(folder: Path, *, sync: bool) -> AsyncIterator[Callable[[], Cycle]]:
    bare = Bare(folder, sync=sync)
    yield lambda: bare
    bare.close()


@asynccontextmanager
async def _filelock(folder: Path) -> AsyncIterator[Callable[[], Cycle]]:
    # One for each use: an object that is shared is re-entrant, and excludes no task.
    yield lambda: cast("Cycle", AsyncFileLock(folder / "bench.lock"))


PEERS = [
    Peer(
        "bare O_EXCL in a thread",
        "files",
        partial(_bare, sync=False),
        floor=True,
        processes=True,
    ),
    Peer("bare O_EXCL, synced", "files", partial(_bare, sync=True)),
    Peer("filelock", "files", _filelock, loops=ASYNCIO, processes=True),
]
