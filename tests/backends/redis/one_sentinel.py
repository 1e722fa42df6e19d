"""A primary, a replica and the Sentinel that watches over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.fix_redis import StartRedis
from tests.servers.process import until
from tests.servers.redis import RedisServer
from tests.servers.sentinel import Sentinel

NAME = "shop"


class Watched:
    """Two servers and who watches them."""

    def __init__(
        self, primary: RedisServer, replica: RedisServer, sentinel: Sentinel
    ) -> None:
        self.primary = primary
        self.replica = replica
        self.port: int = sentinel.port
        self._sentinel = sentinel

    def fail_over(self) -> None:
        """The primary dies and the replica takes its place."""
        self.primary.kill()
        there = str(self.replica.port).encode()
        until(
            lambda: (
                self.ask("GET-MASTER-ADDR-BY-NAME")[1] == there
                and self.replica.role == "master"
            ),
            "the replica is the primary",
        )

    def ask(self, question: str) -> Any:  # noqa: ANN401 - any answer
        """What Sentinel says."""
        return self._sentinel.ask("SENTINEL", question, NAME)


@contextmanager
def watched(start: StartRedis, folder: Path) -> Iterator[Watched]:
    primary = start(config={"repl-diskless-sync-delay": "0"})
    replica = start(config={"replicaof": f"127.0.0.1 {primary.port}"})
    until(lambda: b"state=online" in primary.ask("INFO", "replication"), "in step")
    sentinel = Sentinel(
        folder / "sentinel",
        f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 1",
        f"sentinel down-after-milliseconds {NAME} 500",
    )
    servers = Watched(primary, replica, sentinel)
    try:
        known = f"127.0.0.1:{replica.port}"
        until(lambda: known in str(servers.ask("REPLICAS")), "it knows the replica")
        yield servers
    finally:
        sentinel.close()
