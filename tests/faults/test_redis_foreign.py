"""Two processes of ours and a foreign one hammer one name: no update is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.faults.counter import LEAST, Counter
from tests.faults.redis_foreign import foreign_loop
from tests.faults.workers import ROOT
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

EVENTS = {"notify-keyspace-events": "Kgx"}  # else we would poll more than count


def hammered(
    server: RedisServer, path: Path, *, locking: bool
) -> tuple[int, int, int, int]:
    """(counted, written by us, written by the foreigner, changed under a reader)."""
    counter = Counter(path)
    with (
        foreign_loop(server, counter, locking=locking) as written,
        ExitStack() as stack,
    ):
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "tests.faults.counter"),
                        *(server.url, str(path), "1.5", loop),
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
            for loop in ("asyncio", "trio")
        ]
        reports = [json.loads(process.communicate()[0]) for process in processes]
    ours = sum(one["writes"] for one in reports)
    torn = sum(one["torn"] for one in reports)
    for one in reports:
        assert min(one["writes"], one["reads"]) >= LEAST
    return counter.read(), ours, written[0], torn


def test_no_update_is_lost(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis(config=EVENTS)
    counted, ours, theirs, torn = hammered(server, tmp_path / "counter", locking=True)
    assert counted == ours + theirs
    assert torn == 0
    assert theirs > 5, "the foreigner gets its turns, too"
    assert server.ask("KEYS", "mutex_locks/*") == []


def test_without_its_lock_updates_are_lost(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    """The control: the foreigner does not ask."""
    server = start_redis(config=EVENTS)
    counted, ours, theirs, torn = hammered(server, tmp_path / "counter", locking=False)
    assert counted < ours + theirs
    assert torn > 0
