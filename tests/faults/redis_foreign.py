"""A foreign program: plain redis-py, the published statements, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tests.faults.redis_counter import Counter
from tests.servers.redis import RedisServer

SEAT = "mutex_locks/foobar,123"
FREE = """
local value = redis.call('GET', KEYS[1])
if value and string.match(value, '^(.*),') == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""


class Foreign:
    """Takes and frees the mutex (foobar, 123)."""

    def __init__(self, server: RedisServer) -> None:
        self._client = redis.Redis.from_url(server.url, decode_responses=True)

    def take(self, ticket: str, ms: int | None = None) -> bool:
        value = f"{ticket},{int(time.time())}"
        return bool(self._client.set(SEAT, value, nx=True, px=ms))

    def free(self, ticket: str) -> bool:
        return bool(self._client.eval(FREE, 1, SEAT, ticket))

    def delete(self) -> None:
        assert self._client.delete(SEAT) == 1

    def overwrite(self, ticket: str) -> None:
        self._client.set(SEAT, f"{ticket},{int(time.time())}")

    def close(self) -> None:
        self._client.close()


@contextmanager
def foreign_loop(
    server: RedisServer, counter: Counter, *, locking: bool
) -> Iterator[list[int]]:
    """A foreign program that counts in a thread until the block ends; how often."""
    done = threading.Event()
    written = [0]

    def run() -> None:
        foreign = Foreign(server)
        while not done.is_set():
            if locking and not foreign.take("gluww"):
                done.wait(0.002)
                continue
            seen = counter.read()
            done.wait(0.002)
            counter.write(seen + 1)
            written[0] += 1
            if locking:
                assert foreign.free("gluww")
                done.wait(0.004)
        foreign.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()
