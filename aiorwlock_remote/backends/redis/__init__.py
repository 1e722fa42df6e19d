"""Locks in Redis or Valkey: one script a step, one connection of our own."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.clients.backend import RedisBackend

__all__ = ["RedisBackend"]
