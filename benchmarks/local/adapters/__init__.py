"""The peers that need no server. A new one is a module and a line here."""

from __future__ import annotations

from benchmarks.harness.lock import Open, peer_at

ASYNCIO_LOCK = "asyncio.Lock"
TRIO_LOCK = "trio.Lock"
ANYIO_LOCK = "anyio.Lock"
AIORWLOCK_READER = "aiorwlock reader"
AIORWLOCK_WRITER = "aiorwlock writer"
MEMORY_MUTEX = "memory:// mutex"
MEMORY_READER = "memory:// reader"
MEMORY_WRITER = "memory:// writer"
SQLITE_MUTEX = "sqlite:// mutex"
SQLITE_READER = "sqlite:// reader"
SQLITE_WRITER = "sqlite:// writer"
FILE_MUTEX = "file:// mutex"
FILE_READER = "file:// reader"
FILE_MUTEX_UNSYNCED = "file://…?sync=no mutex"
SQLITE_FLOOR = "bare SQLite in a thread"
SQLITE_BLOCKING = "bare SQLite"
FILE_FLOOR = "bare O_EXCL in a thread"
FILE_SYNCED = "bare O_EXCL, synced"
FILELOCK = "filelock"

ASYNCIO_ONLY = (ASYNCIO_LOCK, AIORWLOCK_READER, AIORWLOCK_WRITER, FILELOCK)
"""Peers that run on asyncio, with or without uvloop, and not on trio."""
TRIO_ONLY = (TRIO_LOCK,)

_PLACES = {
    ASYNCIO_LOCK: ("in_process", "asyncio_lock"),
    TRIO_LOCK: ("in_process", "trio_lock"),
    ANYIO_LOCK: ("in_process", "anyio_lock"),
    AIORWLOCK_READER: ("in_process", "aiorwlock_reader"),
    AIORWLOCK_WRITER: ("in_process", "aiorwlock_writer"),
    MEMORY_MUTEX: ("ours", "mutex"),
    MEMORY_READER: ("ours", "reader"),
    MEMORY_WRITER: ("ours", "writer"),
    SQLITE_MUTEX: ("ours", "mutex"),
    SQLITE_READER: ("ours", "reader"),
    SQLITE_WRITER: ("ours", "writer"),
    FILE_MUTEX: ("ours", "mutex"),
    FILE_READER: ("ours", "reader"),
    FILE_MUTEX_UNSYNCED: ("ours", "mutex"),
    SQLITE_FLOOR: ("sqlite", "threaded"),
    SQLITE_BLOCKING: ("sqlite", "blocking"),
    FILE_FLOOR: ("files", "bare"),
    FILE_SYNCED: ("files", "bare_synced"),
    FILELOCK: ("files", "filelock"),
}
PEERS = tuple(_PLACES)


def opener(name: str) -> Open:
    """Return what opens a peer; only the module of that peer is imported."""
    module, attribute = _PLACES[name]
    return peer_at(f"local.adapters.{module}", attribute)


def kind_of(peer: str) -> str:
    """Return where a peer keeps its locks: ``memory``, ``sqlite`` or ``files``."""
    if "sqlite" in peer.lower():
        return "sqlite"
    return "files" if peer.startswith(("file", "bare O_EXCL")) else "memory"


def floor_of(peer: str, loop: str) -> str | None:
    """Return the floor that a peer is compared with."""
    floors = {
        "memory": TRIO_LOCK if loop == "trio" else ASYNCIO_LOCK,
        "sqlite": SQLITE_FLOOR,
        "files": FILE_FLOOR,
    }
    return floors[kind_of(peer)]


def url_of(peer: str, folder: str) -> str:
    """Return where a peer finds its locks, in a folder of the round."""
    urls = {
        "memory": f"memory://{folder.rpartition('/')[2]}",
        "sqlite": f"sqlite:///{folder}/locks.db",
        "files": f"file://{folder}/locks?create=yes",
    }
    unsynced = "&sync=no" if peer == FILE_MUTEX_UNSYNCED else ""
    return urls[kind_of(peer)] + unsynced
