"""Connections of ``RedisBackend``, opened as a user's own client opens them."""
