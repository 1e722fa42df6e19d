"""The peers on Redis. A new one is a module and a line here."""

from __future__ import annotations

from benchmarks.harness.lock import Open, peer_at

FLOOR = "floor"
BLPOP = "raw-blpop"
OURS = "aiorwlock-remote"
MEMORY = "aiorwlock-remote memory://"
REDIS_PY = "redis-py"
REDIS_PY_FAST = "redis-py sleep=0.001"
COREDIS = "coredis"
POTTERY = "pottery"
PYTHON_REDIS_LOCK = "python-redis-lock"
REDISHILOK = "redishilok"
RUEIDIS = "rueidislock"
"""A program in Go, see ``go/main.go``: ``opener`` does not know it."""
REDISSON = "Redisson"
"""A program in Java, see ``java/Peer.java``: ``opener`` does not know it."""

LEASE_KEYS = {
    OURS: "mutex_locks/bench,%s",
    REDIS_PY: "%s",
    REDIS_PY_FAST: "%s",
    COREDIS: "%s",
    POTTERY: "redlock:%s",
    PYTHON_REDIS_LOCK: "lock:%s",
    REDISHILOK: "%s",
    RUEIDIS: "rueidislock:0:%s",
    REDISSON: "%s",
}
"""The key of the server whose expiry is the lease of a resource, by peer."""

_PLACES = {
    FLOOR: ("floors", "connect_floor"),
    BLPOP: ("floors", "connect_blpop"),
    OURS: ("ours", "connect"),
    MEMORY: ("ours", "connect"),
    REDIS_PY: ("redis_py", "connect"),
    REDIS_PY_FAST: ("redis_py", "connect_fast"),
    COREDIS: ("by_coredis", "connect"),
    POTTERY: ("by_pottery", "connect"),
    PYTHON_REDIS_LOCK: ("by_python_redis_lock", "connect"),
    REDISHILOK: ("by_redishilok", "connect"),
}


def opener(name: str) -> Open:
    """Return what opens a peer; only the module of that peer is imported."""
    module, attribute = _PLACES[name]
    return peer_at(f"redis.adapters.{module}", attribute)
