"""Random bits, from a small stock.

Each read of the system's source is a system call that gives up the interpreter's lock;
where a driver's thread is busy, getting it back takes longer than all else that a
request costs here.
"""

from __future__ import annotations

import os

ID_BYTES = 16
POOL_SIZE = 64


class _RandomIdPool:
    """For all threads of a process; a forked child begins with none of its parent's."""

    def __init__(self) -> None:
        self._pid = 0
        self._nonces: list[bytes] = []

    def __call__(self) -> bytes:
        """128 bits of the system's source that nobody else gets."""
        if self._pid != os.getpid():
            self._nonces.clear()
            self._pid = os.getpid()
        while True:
            try:
                return self._nonces.pop()
            except IndexError:  # another thread may take all of these as well
                bits = os.urandom(ID_BYTES * POOL_SIZE)
                at = range(0, len(bits), ID_BYTES)
                self._nonces.extend(bits[n : n + ID_BYTES] for n in at)

    def anew(self) -> None:
        """Nothing that was read before: this may be a clone of a process, which has it,
        too (a snapshot that is started more than once).
        """
        self._nonces.clear()


random_id: _RandomIdPool = _RandomIdPool()
