"""A Redis cluster: three primaries with a replica each by default, all real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiorwlock_remote.backends.redis.cluster.slots import SLOTS
from tests.servers.certificates import Certificates
from tests.servers.process import free_port, until
from tests.servers.redis import RedisServer

PRIMARIES = 3


class Cluster:
    """Servers that agree. A node silent for ``node_timeout`` seconds is replaced.

    ``config``, ``users`` and ``certificates`` are those of every server. ``replicas``:
    whether each primary has one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node_timeout: float,
        config: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        certificates: Certificates | None = None,
        primaries: int = PRIMARIES,
        replicas: bool = True,
    ) -> None:
        self.servers: list[RedisServer] = []
        try:
            for number in range(primaries * (2 if replicas else 1)):
                (home := folder / f"node{number}").mkdir()
                self.servers.append(
                    RedisServer(
                        home,
                        config={
                            "cluster-enabled": "yes",
                            "cluster-port": str(free_port()),
                            "cluster-node-timeout": str(round(node_timeout * 1000)),
                            "cluster-replica-validity-factor": "0",
                            "repl-diskless-sync-delay": "0",
                            "repl-ping-replica-period": "1",
                            **(config or {}),
                        },
                        users=users,
                        certificates=certificates,
                    )
                )
            self._join(primaries)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://{hosts}"

    def owner(self, slot: int, asked: RedisServer | None = None) -> RedisServer:
        """The primary that has a slot, as a server that runs tells."""
        for first, last, primary, *_ in self._slots(asked):
            if first <= slot <= last:
                return self._by_port(primary[1])
        raise LookupError(f"nobody has slot {slot}")

    def another(self, slot: int) -> RedisServer:
        """A primary of the beginning that does not have the slot."""
        owner = self.owner(slot)
        return next(s for s in self.servers[:PRIMARIES] if s is not owner)

    def await_another(
        self, slot: int, old: RedisServer, seconds: float = 30.0
    ) -> RedisServer:
        """Wait until all that run agree on another owner of a slot; who that is."""

        def replaced() -> bool:
            found = {self.owner(slot, other).port for other in others}
            return len(found) == 1 and old.port not in found and all(map(_fine, others))

        others = [server for server in self.servers if server is not old]
        until(replaced, f"another node has slot {slot}", seconds)
        return self.owner(slot, others[0])

    def begin_move(self, slot: int, to: RedisServer) -> RedisServer:
        """A slot begins to move to another primary; whose it still is."""
        old = self.owner(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(old))
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))
        return old

    def move_keys(self, slot: int, to: RedisServer, count: int = 1000) -> int:
        """Move keys of a slot that moves, at most ``count``; how many there were."""
        old = self.owner(slot)
        keys = old.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            where = ("127.0.0.1", to.port, "", 0, 5000)
            old.ask("MIGRATE", *where, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, to: RedisServer) -> None:
        """The slot is the other's; every node knows it, and since which epoch.

        Who gets it next, and has not heard of that epoch, claims it with an older one:
        then the nodes name each other, for ever.
        """
        old = self.owner(slot)
        while self.move_keys(slot, to):
            pass
        there = [s for s in self.servers if s.role == "master"]
        name = _id(to)
        for server in (to, old, *there):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

        def known() -> bool:
            return len({_epoch(server, name) for server in there}) == 1

        until(known, "all know the slot's new node")

    def move(self, slot: int, to: RedisServer) -> None:
        """Move a slot with all its keys."""
        self.begin_move(slot, to)
        self.end_move(slot, to)

    def ask(self, key: str, *args: str | int | bytes) -> Any:  # noqa: ANN401 - any answer
        """A command at the node that has a key."""
        return self.owner(self.servers[0].ask("CLUSTER", "KEYSLOT", key)).ask(*args)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def _join(self, count: int) -> None:
        primaries, replicas = self.servers[:count], self.servers[count:]
        share = SLOTS / count
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, server in enumerate(primaries):
            first, last = round(number * share), round((number + 1) * share) - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in self.servers[1:]:
            bus = server.ask("CONFIG", "GET", "cluster-port")[1]
            there = ("127.0.0.1", server.tls_port or server.port, int(bus))
            self.servers[0].ask("CLUSTER", "MEET", *there)
        until(lambda: all(map(self._knows_all, self.servers)), "the nodes are one")
        if replicas:
            for primary, replica in zip(primaries, replicas, strict=True):
                replica.ask("CLUSTER", "REPLICATE", _id(primary))
            until(lambda: all(map(_followed, primaries)), "replicas are in step")
        until(lambda: all(map(_fine, self.servers)), "the cluster is fine")
        if replicas:
            all_known = "all know the replicas"
            until(lambda: all(map(self._complete, self.servers)), all_known)

    def _knows_all(self, server: RedisServer) -> bool:
        nodes = server.ask("CLUSTER", "NODES").decode().splitlines()
        whole = len(nodes) == len(self.servers)
        return whole and not any("handshake" in node for node in nodes)

    def _complete(self, server: RedisServer) -> bool:
        return all(len(entry) == 4 for entry in self._slots(server))

    def _slots(self, asked: RedisServer | None = None) -> list[list[Any]]:
        if asked is not None:
            return list(asked.ask("CLUSTER", "SLOTS"))
        for server in self.servers:
            try:
                return list(server.ask("CLUSTER", "SLOTS"))
            except OSError:
                continue
        raise LookupError("no node runs")

    def _by_port(self, port: int) -> RedisServer:
        return next(s for s in self.servers if port in {s.port, s.tls_port})


def _id(server: RedisServer) -> bytes:
    found: bytes = server.ask("CLUSTER", "MYID")
    return found


def _epoch(asked: RedisServer, name: bytes) -> bytes:
    """A node's epoch, as this one knows it."""
    nodes = asked.ask("CLUSTER", "NODES").splitlines()
    return next(bytes(node.split()[6]) for node in nodes if node.startswith(name))


def _fine(server: RedisServer) -> bool:
    return b"cluster_state:ok" in server.ask("CLUSTER", "INFO")


def _followed(primary: RedisServer) -> bool:
    return bool(primary.ask("ROLE")[2])
