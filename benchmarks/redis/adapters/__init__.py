"""All that a worker in Python can open. A new one is a module and a line here."""

from __future__ import annotations

from importlib import import_module

from benchmarks.shared.client import Open

FLOOR = "floor"
BLPOP = "raw-blpop"
OURS = "aiorwlock-remote"
MEMORY = "aiorwlock-remote memory://"
REDIS_PY = "redis-py"
REDIS_PY_FAST = "redis-py sleep=0.001"
RUEIDIS = "rueidislock"
"""In Go: see ``go/main.go``."""

SEATS = {OURS: "mutex_locks/bench,%s", REDIS_PY: "%s", REDIS_PY_FAST: "%s"}
"""The key that lives as long as the lease does."""


def opener(name: str) -> Open:
    """How to open it. Only what is measured gets imported."""
    module = import_module(f"benchmarks.redis.adapters.{_MODULES[name]}")
    sleep = _SLEEPS.get(name)
    found: Open = module.connect if sleep is None else module.polling(sleep)
    return found


_MODULES = {
    FLOOR: "floor",
    BLPOP: "blpop",
    OURS: "ours",
    MEMORY: "ours",
    REDIS_PY: "redis_py",
    REDIS_PY_FAST: "redis_py",
}
_SLEEPS = {REDIS_PY: 0.1, REDIS_PY_FAST: 0.001}

__all__ = [
    "BLPOP",
    "FLOOR",
    "MEMORY",
    "OURS",
    "REDIS_PY",
    "REDIS_PY_FAST",
    "RUEIDIS",
    "SEATS",
    "opener",
]
