"""aiorwlock-remote: every store that needs no server, each kind of lock."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from aiorwlock_remote import Locks, connect
from benchmarks.peer import Cycle, Open, Peer

KINDS: dict[str, Callable[[Locks], Cycle]] = {
    "mutex": lambda locks: locks.mutex("bench", 1),
    "reader": lambda locks: locks.rwlock("bench", 1).reader,
    "writer": lambda locks: locks.rwlock("bench", 1).writer,
}
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{secrets.token_hex(4)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
    "files": lambda folder: f"file://{folder}/locks?create=yes",
    "files, sync=no": lambda folder: f"file://{folder}/locks?create=yes&sync=no",
}
"""A new backend without a server is a line here, and measured from then on."""

ONLY = {"files": ("mutex", "reader"), "files, sync=no": ("mutex",)}
NAMES = {"files": "file://", "files, sync=no": "file://…?sync=no"}


@asynccontextmanager
async def _open(
    url: Callable[[Path], str], kind: Callable[[Locks], Cycle], folder: Path
) -> AsyncIterator[Callable[[], Cycle]]:
    async with connect(url(folder)) as locks:
        lock = kind(locks)
        yield lambda: lock


def _peer(store: str, kind: str) -> Peer:
    opened: Callable[[Path], AbstractAsyncContextManager[Callable[[], Cycle]]]
    opened = partial(_open, STORES[store], KINDS[kind])
    open_: Open = opened
    return Peer(
        f"{NAMES.get(store, f'{store}://')} {kind}",
        store.partition(",")[0],
        open_,
        shared=kind == "reader",
        processes=store != "memory",
    )


PEERS = [_peer(store, kind) for store in STORES for kind in ONLY.get(store, KINDS)]
