"""Random ids, taken from a pool that one system call fills for many requests."""

from __future__ import annotations

import os

ID_BYTES = 16
# Each read of the system's source is a system call that releases the interpreter's
# lock. Beside a busy driver thread, getting the lock back takes longer than all else
# that a request costs here. One read fills the stock for 64 requests.
POOL_SIZE = 64


class _RandomIdPool:
    def __init__(self) -> None:
        self._pid = 0
        self._nonces: list[bytes] = []

    def __call__(self) -> bytes:
        # A forked child with its parent's stock would give out the parent's tickets.
        if self._pid != os.getpid():
            self._nonces.clear()
            self._pid = os.getpid()
        while True:
            try:
                return self._nonces.pop()
            except IndexError:  # loops: another thread may empty the stock again
                bits = os.urandom(ID_BYTES * POOL_SIZE)
                at = range(0, len(bits), ID_BYTES)
                self._nonces.extend(bits[n : n + ID_BYTES] for n in at)

    def anew(self) -> None:
        """Empty the pool: a process cloned from a snapshot would give out equal ids."""
        self._nonces.clear()


random_id: _RandomIdPool = _RandomIdPool()
