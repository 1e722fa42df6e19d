"""A foreign program that takes and frees the mutex (foobar, 123)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import redis

from tests.faults.counter import Counter
from tests.servers.plain import PlainRedis
from tests.servers.redis import RedisServer

NAME = "foobar", 123
SEAT = "mutex_locks/foobar,123"


class Foreign(PlainRedis):
    """Keeps its connection."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.url, "")
        self._kept = redis.Redis.from_url(server.url, decode_responses=True)

    def _client(self) -> AbstractContextManager[Any]:
        return nullcontext(self._kept)

    def close(self) -> None:
        self._kept.close()


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
            if locking and not foreign.take(NAME, "gluww"):
                done.wait(0.002)
                continue
            seen = counter.read()
            done.wait(0.002)
            counter.write(seen + 1)
            written[0] += 1
            if locking:
                assert foreign.free(NAME, "gluww")
                done.wait(0.004)
        foreign.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()
