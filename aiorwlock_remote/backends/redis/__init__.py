"""Lock store on Redis or Valkey: each step is one Lua script, over one connection."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.clients.backend import RedisBackend

__all__ = ["RedisBackend"]
