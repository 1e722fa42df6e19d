"""A primary, a replica and the Sentinel that watches over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.servers.fix_redis import StartRedis
from tests.servers.process import ServerProcess, free_port, needed, until
from tests.servers.redis import RedisServer

NAME = "shop"


class Watched:
    """Two servers and the port of who watches them."""

    def __init__(self, primary: RedisServer, replica: RedisServer, port: int) -> None:
        self.primary = primary
        self.replica = replica
        self.port = port

    def fail_over(self) -> None:
        """The primary dies and the replica takes its place."""
        self.primary.kill()
        there = str(self.replica.port).encode()
        until(
            lambda: (
                self.ask("GET-MASTER-ADDR-BY-NAME")[1] == there
                and self.replica.ask("ROLE")[0] == b"master"
            ),
            "the replica is the primary",
        )

    def ask(self, question: str) -> Any:  # noqa: ANN401 - any answer
        """What Sentinel says; None before it listens."""
        with redis.Redis(port=self.port) as client:
            client.response_callbacks.clear()
            with suppress(redis.ConnectionError):
                return client.execute_command("SENTINEL", question, NAME)
        return None


@contextmanager
def watched(start: StartRedis, folder: Path) -> Iterator[Watched]:
    primary = start(config={"repl-diskless-sync-delay": "0"})
    replica = start(config={"replicaof": f"127.0.0.1 {primary.port}"})
    until(lambda: b"state=online" in primary.ask("INFO", "replication"), "in step")
    port, file = free_port(), folder / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder / 'log'}\n"
        f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds {NAME} 500\n"
    )
    process = ServerProcess(needed("redis-server", "redis-server"), file, "--sentinel")
    servers = Watched(primary, replica, port)
    try:
        known = f"127.0.0.1:{replica.port}"
        until(lambda: known in str(servers.ask("REPLICAS")), "it knows the replica")
        yield servers
    finally:
        process.end()
