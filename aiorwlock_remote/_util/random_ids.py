"""Random ids, taken from a stock that one system call fills for many requests."""

from __future__ import annotations

import os

ID_BYTES = 16
# Each read of the system's source is a system call that releases the interpreter's
# lock. Beside a busy driver thread, getting the lock back takes longer than all else
# that a request costs here. One read fills the stock for 64 requests.
STOCK_SIZE = 64

# By process id: a forked child with its parent's stock would give out the parent's
# tickets.
_stocks: dict[int, list[bytes]] = {}


def random_id() -> bytes:
    """Return ``ID_BYTES`` random bytes that no other call returns, in any process."""
    pid = os.getpid()
    stock = _stocks.get(pid)
    if stock is None:
        _stocks.clear()
        stock = _stocks.setdefault(pid, [])
    while True:
        try:
            return stock.pop()
        except IndexError:  # loops: another thread may empty the stock again
            bits = os.urandom(ID_BYTES * STOCK_SIZE)
            at = range(0, len(bits), ID_BYTES)
            stock.extend(bits[n : n + ID_BYTES] for n in at)


def discard_random_ids() -> None:
    """Empty the stock: a process cloned from a snapshot would give out equal ids."""
    for stock in list(_stocks.values()):
        stock.clear()
