"""``python -m benchmarks.redis.newer_commands [TURNS]``: what newer servers could save.

Releases of an uncontended mutex, and writes of a queue entry, each by today's script or
command and by the newer commands that the server has. All ways take turns in one run:
whatever else the machine does meets all of them. The environment variable ``SERVERS``
chooses the server, see ``tests/servers/chosen.py``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from redis import Redis

from aiorwlock_remote.backends.redis.codec import encode
from aiorwlock_remote.backends.redis.keys import Keys
from aiorwlock_remote.backends.redis.scripts import ENTER, LEAVE
from aiorwlock_remote.core.commands import Acquire, Claim, Release
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from tests.servers.redis import RedisServer

TURNS = 5_000
LEASE = 30_000_000
ENTRY_TTL = 4
RECORD = "ticket,1795649333"
KEY = "mutex_locks/bare,1"
TODAY = "release: today's script"

COMPARE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
WITH_DELIFEQ = {
    "try('GET', MUTEX) == our_mutex": "try('DELIFEQ', MUTEX, our_mutex) == 1",
    "local answer = try('DEL', MUTEX)": "local answer = 1",
}
"""Changes of our script, good for the release of a mutex alone."""

_SUCCEEDED = (0, 1, True)  # 0: a field of a hash was there before

Way = tuple[Callable[[], Any], Callable[[], Any]]
"""What comes before, which is not measured, and what is measured."""


def main() -> None:
    """Print a table of microseconds per request."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(RedisServer(Path(folder))) as server,
        closing(Redis(port=server.port)) as client,
    ):
        ways = _ways(client)
        seconds = _measured(ways, turns)
        info: dict[str, Any] = client.info("server")
        name = info.get("server_name", "redis")
        print(f"{name} {info.get('valkey_version') or info['redis_version']}")
        for way, found in seconds.items():
            tenth, *_ = quantiles(found, n=10)
            print(f"| {way} | {median(found) * 1e6:.1f} | {tenth * 1e6:.1f} |")


def _measured(ways: dict[str, Way], turns: int) -> dict[str, list[float]]:
    order, random = list(ways), Random(1)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        random.shuffle(order)
        for way in order:
            before, measured = ways[way]
            before()
            began = time.perf_counter()
            answer = measured()
            seconds[way].append(time.perf_counter() - began)
            assert answer in _SUCCEEDED, (way, answer)
    return seconds


def _ways(client: Any) -> dict[str, Way]:  # noqa: ANN401 - redis-py's types say less
    def run(*args: object) -> Callable[[], Any]:
        return lambda: client.execute_command(*args)

    def has(command: str) -> bool:
        return command in known

    known = {name.decode().upper() for name in client.execute_command("COMMAND LIST")}
    keys = Keys(resource("bench", 1), fence_memory=3600)
    claim = Claim("ticket", LEASE)
    _, enter = encode(keys, Acquire((claim,), Mode.WRITE, client_id="us"), "us")
    _, leave = encode(keys, Release("ticket", Mode.WRITE), "us")
    acquire = run("EVALSHA", client.script_load(ENTER.text), *enter)
    set_record = run("SET", KEY, RECORD, "NX", "PX", 30_000)
    ways: dict[str, Way] = {
        "PING": (bool, run("PING")),
        TODAY: (acquire, run("EVALSHA", client.script_load(LEAVE.text), *leave)),
        "release: published statements, by their script": (
            set_record,
            run("EVALSHA", client.script_load(COMPARE), 1, KEY, RECORD),
        ),
        "queue entry: HSET": (bool, run("HSET", "queue", "w:us", RECORD)),
    }
    if has("DELIFEQ"):
        newer = LEAVE.text
        for old, new in WITH_DELIFEQ.items():
            assert old in newer, f"fast.lua was changed: it has no {old}"
            newer = newer.replace(old, new)
        ways["release: today's script with DELIFEQ in it"] = (
            acquire,
            run("EVALSHA", client.script_load(newer), *leave),
        )
        ways["release: published statements, DELIFEQ"] = (
            set_record,
            run("DELIFEQ", KEY, RECORD),
        )
    if has("DELEX"):
        ways["release: published statements, DELEX IFEQ"] = (
            set_record,
            run("DELEX", KEY, "IFEQ", RECORD),
        )
    if has("HSETEX"):
        ways["queue entry: HSETEX EX"] = (
            bool,
            run(
                *("HSETEX", "expiring", "EX", ENTRY_TTL),
                *("FIELDS", 1, "w:us", RECORD),
            ),
        )
    return ways


if __name__ == "__main__":
    main()
