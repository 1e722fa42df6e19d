"""All peers. A new one is a module with a list ``PEERS`` and a line here."""

from __future__ import annotations

from benchmarks.adapters import aiorwlock, files, local, ours, sqlite
from benchmarks.peer import Peer

PEERS: list[Peer] = [
    *local.PEERS,
    *aiorwlock.PEERS,
    *ours.PEERS,
    *sqlite.PEERS,
    *files.PEERS,
]


def peer(name: str) -> Peer:
    """The peer of that name."""
    return next(each for each in PEERS if each.name == name)
