"""Records a store: processes that lock in every way, one of which is killed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiorwlock_remote.backends.etcd.cas import Mark
from aiorwlock_remote.core.commands import Reply
from tests.faults.workers import WorkerPool
from tests.traces import redis, sqlite, swaps
from tests.traces.history import Request, read_journal
from tests.traces.replay import (
    CASSANDRA,
    ETCD,
    POSTGRESQL,
    REDIS,
    SQLITE,
    Difference,
    Rules,
    by_resource,
    check_replies,
    in_order,
    replay,
)

LOOPS = ("asyncio", "trio", "asyncio")
KILLED_AFTER = 0.3


@dataclass
class Recording:
    """The requests of one run, in the store's order for each resource."""

    rules: Rules
    histories: dict[str, list[Request]]
    replies: redis.Replies | None = None
    clients: dict[str, str] = field(default_factory=dict[str, str])
    """The processes by their client ids."""

    @property
    def requests(self) -> int:
        return sum(map(len, self.histories.values()))

    def difference(self) -> Difference | None:
        """Return where the recording first differs from the core; None: nowhere."""
        replayed: list[tuple[Request, Reply | None]] = []
        for history in self.histories.values():
            replies, difference = replay(history, self.rules)
            if difference is not None:
                return difference
            replayed += zip(history, replies, strict=True)
        return None if self.replies is None else check_replies(self.replies, replayed)


def record(url: str, folder: Path, *, port: int = 0, **plan: Any) -> Recording:  # noqa: ANN401 - fields of a plan
    """Run three processes on a store, kill one of them, and return what was recorded.

    ``port``: of the Redis server, whose stream has the requests. ``plan``: of the
    workers.
    """
    folder.mkdir()
    with WorkerPool(url, folder, "tests.traces.worker") as pool:
        names = [pool.start(loop=loop, **plan) for loop in LOOPS]
        time.sleep(KILLED_AFTER)
        pool.kill(names[0])
        pool.join()
    return read_recording(url, folder, port)


def read_recording(url: str, folder: Path, port: int = 0) -> Recording:
    """Return what the processes, and Redis itself, wrote down."""
    journals = [
        (path.stem, read_journal(path)) for path in sorted(folder.glob("*.journal"))
    ]
    clients = {path.read_text("utf-8"): path.stem for path in folder.glob("*.client")}
    scheme = url.partition(":")[0]
    if scheme == "redis":
        requests, replies = redis.requests_of(journals, redis.read_stream(port))
        return Recording(REDIS, by_resource(requests), replies, clients)
    if scheme == "sqlite":
        return _ordered(sqlite.requests_of(journals), SQLITE, clients)
    rules = {"cassandra": CASSANDRA, "etcd": ETCD, "postgresql": POSTGRESQL}[scheme]
    return _ordered(swaps.requests_of(journals, _version), rules, clients)


def _ordered(
    requests: list[Request], rules: Rules, clients: dict[str, str]
) -> Recording:
    histories = {
        resource: in_order(history, rules)
        for resource, history in by_resource(requests).items()
    }
    return Recording(rules, histories, None, clients)


def _version(mark: Any) -> object:  # noqa: ANN401 - of any kind of store
    if isinstance(mark, Mark):
        return mark.doorman or None
    row = getattr(mark, "found", mark)
    return row.version
