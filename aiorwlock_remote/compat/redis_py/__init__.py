"""Locks with the signatures of redis-py's: here ``redis.lock.Lock``, and in
``compat.redis_py.asyncio`` that of ``redis.asyncio.lock.Lock``.

::

    from aiorwlock_remote.compat.redis_py import Lock  # in place of redis.lock

    with Lock(redis.Redis(), "order-42", timeout=30):
        ...

The locks of redis-py with the same name exclude it, and it excludes them. Waiters are
notified, and enter in their order.
"""

from __future__ import annotations

from aiorwlock_remote.compat.redis_py.lock import Lock

__all__ = ["Lock"]
