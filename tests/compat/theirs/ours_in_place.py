"""pytest plugin: puts our ``Lock`` classes in the place of redis-py's."""

from __future__ import annotations

import redis.asyncio.lock
import redis.lock

from aiorwlock_remote.compat.redis_py import Lock
from aiorwlock_remote.compat.redis_py.asyncio import Lock as AsyncLock

redis.lock.Lock = Lock  # type: ignore[misc, assignment]
redis.asyncio.lock.Lock = AsyncLock  # type: ignore[misc, assignment]
