"""A foreign program: plain redis-py with the published statements of a mutex set."""

from __future__ import annotations

from typing import Any

import redis

from tests.servers.redis import RedisServer

# Whole seconds or with their fraction: programs differ in what they write.
NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1])
if ARGV[1] == 'fraction' then now = now + time[2] / 1000000 end
local stamp = string.format('%.6f', now)
local limit = now - tonumber(ARGV[2])
"""
ACQUIRE = """
local name = ARGV[3]
if name == '' then
    name = redis.call('ZRANGEBYSCORE', KEYS[1], 0, '(' .. limit, 'LIMIT', 0, 1)[1]
else
    local score = redis.call('ZSCORE', KEYS[1], name)
    if not score or tonumber(score) >= limit then name = nil end
end
if not name then return false end
redis.call('ZADD', KEYS[1], stamp, name)
return {name, stamp}
"""
MINE = """
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[3]) or 0)
if score ~= tonumber(ARGV[4]) or score <= limit then return 0 end
"""
UPDATE = "redis.call('ZADD', KEYS[1], stamp, ARGV[3]) return stamp"
RELEASE = "redis.call('ZADD', KEYS[1], 0, ARGV[3]) return 1"

Pair = tuple[str, str]
"""A grant: the mutex and its score."""


class Published:
    """Takes mutexes of one set. ``clock``: "whole" seconds or with their "fraction"."""

    def __init__(
        self, server: RedisServer, key: str, timeout: float, clock: str = "fraction"
    ) -> None:
        self._client = redis.Redis.from_url(server.url, decode_responses=True)
        self._key = key
        self._timeout = timeout
        self._clock = clock

    def create(self, name: str) -> None:
        self._client.zadd(self._key, {name: 0}, nx=True)

    def acquire(self, name: str = "") -> Pair | None:
        found = self._run(ACQUIRE, name)
        return None if found is None else (found[0], found[1])

    def update(self, pair: Pair) -> Pair | None:
        stamp = self._run(MINE + UPDATE, *pair)
        return (pair[0], stamp) if stamp else None

    def release(self, pair: Pair) -> bool:
        return bool(self._run(MINE + RELEASE, *pair))

    def close(self) -> None:
        self._client.close()

    def _run(self, script: str, *args: str) -> Any:  # noqa: ANN401 - any answer
        head = self._clock, str(self._timeout)
        return self._client.eval(NOW + script, 1, self._key, *head, *args)


# ------------------------------------------------------------------------------
# A foreign program: plain redis-py with the published statements on a pair of keys.


READ = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('SADD', KEYS[1], ARGV[1])
return 1
"""
WRITE = """
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""
END_READ = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('SREM', KEYS[1], ARGV[1])
"""
END_WRITE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[2])
"""


class PublishedPair:
    """One program, by the name it gives itself."""

    def __init__(self, server: RedisServer, name: str, who: str = "joe") -> None:
        self._client = redis.Redis.from_url(server.url, decode_responses=True)
        self._keys = f"readlock:{name}", f"writelock:{name}"
        self._who = who

    def enter(self, mode: str) -> bool:
        """Acquire, if it is free."""
        return self._run(WRITE if mode == "write" else READ)

    def leave(self, mode: str) -> bool:
        """Release; False if it was not the holder."""
        return self._run(END_WRITE if mode == "write" else END_READ)

    def close(self) -> None:
        self._client.close()

    def _run(self, script: str) -> bool:
        return bool(self._client.eval(script, 2, *self._keys, self._who))
