"""The peers on etcd and ZooKeeper. A new one is a module and a line here."""

from __future__ import annotations

from benchmarks.harness.lock import Open, peer_at

FLOOR = "floor"
"""Two transactions by the client that the library has."""
MESSAGE = "floor: one transaction, one message"
"""A transaction that passes a token, and the message of the watch that waits for it."""
OURS = "aiorwlock-remote"
UNFAIR = "aiorwlock-remote fair=False"
AETCD = "aetcd"
KAZOO = "kazoo, ZooKeeper"

_PLACES = {
    FLOOR: ("etcd.adapters.floor", "floor"),
    MESSAGE: ("etcd.adapters.floor", "message"),
    OURS: ("harness.ours", "connect"),
    UNFAIR: ("harness.ours", "connect_unfair"),
    AETCD: ("etcd.adapters.by_aetcd", "connect"),
    KAZOO: ("etcd.adapters.by_kazoo", "connect"),
}


def opener(name: str) -> Open:
    """Return what opens a peer; only the module of that peer is imported."""
    module, attribute = _PLACES[name]
    return peer_at(module, attribute)
