"""All that a worker can open. A new one is a module and a line here."""

from __future__ import annotations

from importlib import import_module

from benchmarks.shared.client import Open

FLOOR = "floor"
FLOOR_READ = "floor and a read"
NAIVE = "naive loop"
EAGER = "naive loop without a pause"
OURS = "aiorwlock-remote"
UNFAIR = "aiorwlock-remote fair=False"
CALLS = "aiorwlock-remote S0"
"""The published calls: a ticket of the caller's, and no fence."""


def opener(name: str) -> Open:
    """How to open it. Only what is measured gets imported."""
    module, attribute = _PLACES[name]
    found: Open = getattr(
        import_module(f"benchmarks.cassandra.adapters.{module}"), attribute
    )
    return found


_PLACES = {
    FLOOR: ("floor", "floor"),
    FLOOR_READ: ("floor", "floor_and_read"),
    NAIVE: ("floor", "naive"),
    EAGER: ("floor", "eager"),
    OURS: ("ours", "connect"),
    UNFAIR: ("ours", "connect_unfair"),
    CALLS: ("ours", "connect_calls"),
}
