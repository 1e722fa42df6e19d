"""A foreign program: plain redis-py with the published statements on a pair of keys."""

from __future__ import annotations

import redis

from tests.servers.redis import RedisServer

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
