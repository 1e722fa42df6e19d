"""A primary, its replicas and the Sentinels that watch over them, all real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers.certificates import Certificates
from tests.servers.process import free_port, until
from tests.servers.redis import RedisServer, redis_program, talk
from tests.servers.server import Server

NAME = "locks"


class Sentinel(Server):
    """One Sentinel of a group; ``lines`` of its configuration besides the usual.

    With ``certificates`` it speaks TLS to servers, and to clients on ``tls_port``.
    """

    program = "redis-server --sentinel"

    def __init__(
        self, folder: Path, *lines: str, certificates: Certificates | None = None
    ) -> None:
        super().__init__(folder)
        folder.mkdir()
        self.port: int = 0
        self.tls_port: int = 0
        self._certificates = certificates
        self._lines = lines
        self.begin()

    def ask(self, *args: str | int) -> Any:  # noqa: ANN401 - any answer
        return talk(self.port, args)[0]

    def choose_ports(self) -> None:
        self.port = free_port()
        self.tls_port = free_port() if self._certificates else 0

    def command(self) -> tuple[str | Path, ...]:
        usual = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "logfile": str(self.folder / "log"),
        }
        if self._certificates is not None:  # towards servers, too
            usual |= self._certificates.for_redis(self.tls_port)
            usual["tls-replication"] = "yes"
        lines = (*(f"{name} {value}" for name, value in usual.items()), *self._lines)
        file = self.folder / "sentinel.conf"
        file.write_text("".join(f"{line}\n" for line in lines))
        return redis_program(), file, "--sentinel"

    def answers(self) -> bool:
        try:
            return bool(self.ask("PING") == b"PONG")
        except OSError:
            return False


class SentinelGroup:
    """Two replicas that are in step and three Sentinels that know each other.

    A primary that is silent for ``down_after`` seconds is replaced.
    """

    def __init__(self, folder: Path, *, down_after: float) -> None:
        config = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        self.servers: list[RedisServer] = []
        self.sentinels: list[Sentinel] = []
        try:
            for number in range(3):
                (home := folder / f"server{number}").mkdir()
                if self.servers:
                    config["replicaof"] = f"127.0.0.1 {self.servers[0].port}"
                self.servers.append(RedisServer(home, config=config))
            first = self.servers[0]
            until(lambda: self.in_step(first, 2), "both replicas are in step")
            milliseconds = round(down_after * 1000)
            for number in range(3):
                self.sentinels.append(
                    Sentinel(
                        folder / f"sentinel{number}",
                        f"sentinel monitor {NAME} 127.0.0.1 {first.port} 2",
                        f"sentinel down-after-milliseconds {NAME} {milliseconds}",
                        f"sentinel failover-timeout {NAME} 3000",
                    )
                )
            until(self._acquainted, "the Sentinels know each other and the replicas")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}/0"

    @property
    def primary(self) -> RedisServer:
        """Whom a majority of the Sentinels name."""
        named = [self._named(sentinel) for sentinel in self.sentinels]
        port = max(named, key=named.count)
        (found,) = (server for server in self.servers if server.port == port)
        return found

    @property
    def replicas(self) -> list[RedisServer]:
        """The others, whether they run or not."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    def await_another(self, old: RedisServer, seconds: float = 30.0) -> RedisServer:
        """Wait until all Sentinels name another primary, and it is one."""

        def replaced() -> bool:
            named = {self._named(sentinel) for sentinel in self.sentinels}
            if len(named) != 1 or old.port in named:
                return False
            return self.primary.role == "master"

        until(replaced, "another primary", seconds)
        return self.primary

    def in_step(self, primary: RedisServer, count: int) -> bool:
        """Whether so many replicas have all that the primary has."""
        mark = ("PUBLISH", "in step", "?"), ("WAIT", count, 100)
        return bool(primary.ask_all(*mark)[1] >= count)

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()

    def _named(self, sentinel: Sentinel) -> int:
        _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port)

    def _acquainted(self) -> bool:
        return all(map(_knows_all, self.sentinels))


def _knows_all(sentinel: Sentinel) -> bool:
    reply = sentinel.ask("SENTINEL", "MASTER", NAME)
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    others, replicas = fields[b"num-other-sentinels"], fields[b"num-slaves"]
    return (others, replicas, fields[b"flags"]) == (b"2", b"2", b"master")


def cut_off(primary: RedisServer) -> None:
    """From now on its replicas learn nothing; clients notice nothing."""
    primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    until(lambda: not primary.ask("ROLE")[2], "no replica is connected")
