"""The peers on Cassandra. A new one is a module and a line here."""

from __future__ import annotations

from benchmarks.harness.lock import Open, peer_at

FLOOR = "floor"
FLOOR_READ = "floor and a read"
NAIVE = "naive loop"
EAGER = "naive loop without a pause"
OURS = "aiorwlock-remote"
WOKEN = "aiorwlock-remote, woken over Redis"
"""Waiters are told to look by a message over another server: ``?wake=redis://…``."""
UNFAIR = "aiorwlock-remote fair=False"
CALLS = "aiorwlock-remote, published calls"
"""The published calls: the ticket is the caller's, and they return no fence."""

_PLACES = {
    FLOOR: ("floor", "floor"),
    FLOOR_READ: ("floor", "floor_and_read"),
    NAIVE: ("floor", "naive"),
    EAGER: ("floor", "eager"),
    OURS: ("ours", "connect"),
    WOKEN: ("ours", "connect"),
    UNFAIR: ("ours", "connect_unfair"),
    CALLS: ("ours", "connect_calls"),
}


def opener(name: str) -> Open:
    """Return what opens a peer; only the module of that peer is imported."""
    module, attribute = _PLACES[name]
    return peer_at(f"cassandra.adapters.{module}", attribute)
