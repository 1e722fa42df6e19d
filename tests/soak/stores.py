"""The stores that a soak can be run on: started, broken, and looked into at the end."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from random import Random
from typing import ClassVar, cast

import anyio
import hiredis
import psycopg
import pymysql

from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.files.names import RECORD, SEAT
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.faults.redis_seats import client, left
from tests.faults.store_outages import busy
from tests.servers.cassandra import CassandraNode
from tests.servers.cassandra_ring import Visit
from tests.servers.cluster import Cluster
from tests.servers.etcd import MEMBERS, Etcd, EtcdRing
from tests.servers.fix_mariadb import make_tables as make_mariadb_tables
from tests.servers.fix_postgresql import make_tables as make_postgresql_tables
from tests.servers.mariadb import Mariadb, connected, run
from tests.servers.mysql import Mysql
from tests.servers.network import Socket
from tests.servers.postgresql import Postgresql
from tests.servers.process import until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import NAME, SentinelGroup
from tests.soak.faults import (
    Fault,
    full,
    killed,
    network_faults,
    server_faults,
    stopped,
)
from tests.soak.names import HOT, SET
from tests.soak.site import Site, at_once

# --------------------------------------------------------------------------- Redis


class Redis(Site):
    """One server that writes each command to its log before it replies."""

    sets = True
    setting = "appendonly yes, appendfsync always, maxmemory-policy noeviction"
    left_out = (
        "disk full: with appendfsync always the server ends itself, as if killed;"
        " replicas: see redis-sentinel and redis-cluster"
    )

    def _start(self) -> str:
        config = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "auto-aof-rewrite-min-size": "32mb",
        }
        (home := self.folder / "redis").mkdir()
        self._server = RedisServer(home, config=config)
        self._clocked(self._server)
        self._behind_proxies(self._server.port)
        return self._server.url

    def faults(self) -> list[Fault]:
        ask = self._server.ask

        def kill(kind: str) -> Callable[[Random], AbstractContextManager[None]]:
            return lambda _: at_once(lambda: ask("CLIENT", "KILL", "TYPE", kind))

        return [
            *server_faults(self._server, self.lease),
            *network_faults(self.proxies, self.lease),
            *self._clock_faults(fence_only=True),
            Fault("out of memory", lambda _: self._no_memory(), (0.1, 2.0), 3),
            Fault("all connections killed", kill("normal"), weight=2),
            Fault("all subscriptions killed", kill("pubsub"), weight=2),
            Fault(
                "scripts flushed",
                lambda _: at_once(lambda: ask("SCRIPT", "FLUSH")),
                weight=2,
            ),
        ]

    @contextmanager
    def _no_memory(self) -> Iterator[None]:
        self._server.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            yield
        finally:
            self._server.ask("CONFIG", "SET", "maxmemory", 0)

    def left(self) -> list[str]:
        with closing(client(self._server.url)) as plain:
            found = [f"{name}: {what}" for name, what in left(plain).items()]
            taken = cast("list[str]", plain.zrangebyscore(SET, 1, "+inf"))
            return found + [f"mutex of the set: {name}" for name in taken]

    def versions(self) -> dict[str, str]:
        return _redis_versions(self._server)

    def close(self) -> None:
        super().close()
        self._server.close()


def _redis_versions(server: RedisServer) -> dict[str, str]:
    info = dict(
        line.split(":", 1)
        for line in server.ask("INFO", "server").decode().splitlines()
        if ":" in line
    )
    return {"redis-server": info["redis_version"], "hiredis": version("hiredis")}


class RedisSentinel(Site):
    """A primary, two replicas and three Sentinels; no grant waits for a replica."""

    setting = "two replicas, three Sentinels, down-after 2 s, without persistence"
    left_out = "network faults: Sentinels name the servers' own addresses"

    def _start(self) -> str:
        self._group = SentinelGroup(self.folder, down_after=2)
        return f"{self._group.url}?command_timeout=1"

    def faults(self) -> list[Fault]:
        # What no replica has is lost.
        failover = partial(Fault, fence_only=True, forgets=True, grace=10.0)
        return [
            failover("planned failover", lambda _: self._planned(), weight=3),
            failover("primary killed", lambda _: self._struck(kill=True)),
            failover("primary stopped", lambda _: self._struck(kill=False)),
            Fault("replica killed", lambda _: self._replica_killed(), (0, 1)),
            Fault("Sentinel stopped", lambda _: self._sentinel_stopped(), (0, 1)),
        ]

    @contextmanager
    def _planned(self) -> Iterator[None]:
        old = self._group.primary
        until(self._begun, "a Sentinel begins the failover", 40, every=0.2)
        yield
        self._group.await_another(old)
        self._await_replicas()

    def _begun(self) -> bool:
        try:
            self._group.sentinels[0].ask("SENTINEL", "FAILOVER", NAME)
        except hiredis.ReplyError:
            return False
        return True

    @contextmanager
    def _struck(self, *, kill: bool) -> Iterator[None]:
        old = self._group.primary
        old.kill() if kill else old.pause()
        yield
        self._group.await_another(old)
        old.start() if kill else old.resume()
        self._await_replicas()

    @contextmanager
    def _replica_killed(self) -> Iterator[None]:
        replica = self._group.replicas[0]
        with killed(replica):
            yield
        self._await_replicas()

    @contextmanager
    def _sentinel_stopped(self) -> Iterator[None]:
        with stopped(self._group.sentinels[1].pid):
            yield

    def _await_replicas(self) -> None:
        primary = self._group.primary
        until(lambda: self._group.in_step(primary, 2), "replicas are in step", 60)

    def left(self) -> list[str]:
        with closing(client(self._group.primary.url)) as plain:
            return [f"{name}: {what}" for name, what in left(plain).items()]

    def versions(self) -> dict[str, str]:
        return _redis_versions(self._group.primary)

    def close(self) -> None:
        super().close()
        self._group.close()


class RedisCluster(Site):
    """Three primaries with a replica each; slots move, and nodes are replaced."""

    claim_window = 0.1
    setting = "three primaries, three replicas, node timeout 1 s, without persistence"
    left_out = "network faults: nodes name their own addresses"

    def _start(self) -> str:
        self._cluster = Cluster(self.folder, node_timeout=1.0)
        return f"{self._cluster.url}?command_timeout=1"

    def faults(self) -> list[Fault]:
        return [
            Fault("slot moved", self._moved, weight=12),
            Fault("slot moved slowly", self._moved_slowly, weight=6),
            Fault(
                *("primary killed", self._struck),
                fence_only=True,
                forgets=True,
                grace=10.0,
            ),
        ]

    def _slot(self, random: Random) -> int:
        return slot_of(f"mutex_locks/hot,{random.randrange(HOT)}".encode())

    @contextmanager
    def _moved(self, random: Random) -> Iterator[None]:
        slot = self._slot(random)
        self._cluster.move(slot, self._another(slot, random))
        yield

    @contextmanager
    def _moved_slowly(self, random: Random) -> Iterator[None]:
        slot = self._slot(random)
        node = self._another(slot, random)
        self._cluster.begin_move(slot, node)
        yield
        while self._cluster.move_keys(slot, node, count=1):
            time.sleep(0.02)
        self._cluster.end_move(slot, node)

    def _another(self, slot: int, random: Random) -> RedisServer:
        owner = self._cluster.owner(slot)
        primaries = [s for s in self._cluster.servers if s.role == "master"]
        return random.choice([server for server in primaries if server is not owner])

    @contextmanager
    def _struck(self, random: Random) -> Iterator[None]:
        slot = self._slot(random)
        old = self._cluster.owner(slot)
        old.kill()
        yield
        self._cluster.await_another(slot, old)
        old.start()
        until(lambda: old.role == "slave", "the old primary is a replica", 60)
        primaries = [s for s in self._cluster.servers if s.role == "master"]
        until(
            lambda: all(server.ask("ROLE")[2] for server in primaries),
            "each primary has a replica",
            60,
        )

    def left(self) -> list[str]:
        found = []
        for server in self._cluster.servers:
            if server.role == "master":
                with closing(client(server.url)) as plain:
                    found += [f"{name}: {what}" for name, what in left(plain).items()]
        return found

    def versions(self) -> dict[str, str]:
        return _redis_versions(self._cluster.servers[0])

    def close(self) -> None:
        super().close()
        self._cluster.close()


# ----------------------------------------------------------------------- databases


class PostgresqlSite(Site):
    """One server that syncs each transaction."""

    disk = 768
    setting = "fsync=on, synchronous_commit=on, full_page_writes=on"
    left_out = "out of memory: the kernel's choice of a process is that of SIGKILL"

    _CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'aiorwlock_remote'
    """

    def _start(self) -> str:
        (home := self.folder / "postgresql").mkdir()
        limits = {
            "max_wal_size": "128MB",
            "autovacuum": "on",
            "autovacuum_naptime": "5s",
        }
        self._server = Postgresql(home, limits)
        self._clocked(self._server)
        make_postgresql_tables(self._server.url)
        self._behind_proxies(self._server.port)
        return self._server.url

    def faults(self) -> list[Fault]:
        return [
            *server_faults(self._server, self.lease),
            *network_faults(self.proxies, self.lease),
            *self._clock_faults(fence_only=True),
            Fault("all sessions ended", lambda _: at_once(self._cut), weight=3),
            *self._disk_faults(lambda _: self._disk_full(), 1),
            Fault("tables locked", lambda _: self._locked(), (0.1, self.lease), 3),
        ]

    def _cut(self) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(self._CUT)

    @contextmanager
    def _disk_full(self) -> Iterator[None]:
        with full(self.folder):
            yield
        # A log that cannot grow ends the server.
        if not self._server.answers():
            self._server.kill()
            self._server.start()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with psycopg.connect(self._server.url) as connection:
            # A lock that has to wait would make all others wait behind it.
            connection.execute("SET lock_timeout = '1s'")
            with suppress(psycopg.errors.LockNotAvailable):
                connection.execute("LOCK TABLE doormans IN EXCLUSIVE MODE")
            with suppress(psycopg.Error):
                yield
            connection.rollback()

    def left(self) -> list[str]:
        with psycopg.connect(self._server.url) as connection:
            rows = connection.execute("SELECT * FROM mutex_locks").fetchall()
        return [f"mutex_locks: {row}" for row in rows]

    def versions(self) -> dict[str, str]:
        with psycopg.connect(self._server.url) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        return {"PostgreSQL": str(row and row[0]), "asyncpg": version("asyncpg")}

    def close(self) -> None:
        super().close()
        self._server.close()


class MariadbSite(Site):
    """One server that syncs each transaction."""

    setting = "innodb-flush-log-at-trx-commit=1"
    left_out = (
        "disk full: InnoDB waits, or ends itself, which is the server killed;"
        " out of memory: as with PostgreSQL"
    )

    program: ClassVar[type[Mariadb]] = Mariadb

    def _start(self) -> str:
        (home := self.folder / "server").mkdir()
        self._server = self.program(home)
        run(self._server.root, "CREATE DATABASE app")
        make_mariadb_tables(self._server.url)
        self._clocked(self._server)
        self._behind_proxies(self._server.port)
        return self._server.url

    def faults(self) -> list[Fault]:
        return [
            *server_faults(self._server, self.lease),
            *network_faults(self.proxies, self.lease),
            *self._clock_faults(fence_only=True),
            Fault("all sessions ended", lambda _: at_once(self._cut), weight=3),
            Fault("tables locked", lambda _: self._locked(), (0.1, self.lease), 3),
        ]

    def _cut(self) -> None:
        query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
        with connected(self._server.url) as connection, connection.cursor() as cursor:
            cursor.execute(f"{query} AND id <> CONNECTION_ID()")
            for (number,) in cursor.fetchall():
                with suppress(pymysql.Error):  # gone by itself
                    cursor.execute(f"KILL {number}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with connected(self._server.url) as connection, connection.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            with suppress(pymysql.OperationalError):
                cursor.execute("LOCK TABLES doormans READ")
            yield
            cursor.execute("UNLOCK TABLES")

    def left(self) -> list[str]:
        rows = run(self._server.url, "SELECT * FROM mutex_locks")
        return [f"mutex_locks: {row}" for row in rows]

    def versions(self) -> dict[str, str]:
        ((found,),) = run(self._server.url, "SELECT VERSION()")
        return {self.program.program: found, "asyncmy": version("asyncmy")}

    def close(self) -> None:
        super().close()
        self._server.close()


class MysqlSite(MariadbSite):
    """The same for MySQL."""

    program = Mysql


class CassandraSite(Site):
    """One node that syncs its log before it replies."""

    lease = 3.0
    entry_lingers = 10.0  # kept for 6 s, and clock_skew
    disk = 2048
    setting = "one node, commitlog_sync batch, clock_skew=4"
    left_out = (
        "disk full: the node stops for good (disk_failure_policy: stop);"
        " rings: tests/faults/test_cassandra.py"
    )
    _KEYSPACE = "soak"

    def _start(self) -> str:
        config = {"commitlog_sync": "batch"}
        (home := self.folder / "cassandra").mkdir()
        self._node = CassandraNode(home, config=config)
        self._clocked(self._node)
        with Visit(self._node.ip, self._node.port) as visit:
            visit.rows(
                f"CREATE KEYSPACE {self._KEYSPACE} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            anyio.run(CassandraBackend(visit.session, self._KEYSPACE).create_schema)
        self._behind_proxies(self._node.port)
        return (
            f"cassandra://{self._node.ip}:{self._node.port}/{self._KEYSPACE}"
            "?clock_skew=4"
        )

    def faults(self) -> list[Fault]:
        return [
            *server_faults(self._node, self.lease, weight=0.3, grace=30.0),
            *network_faults(self.proxies, self.lease),
            *self._clock_faults(fence_only=False),
        ]

    def left(self) -> list[str]:
        with Visit(self._node.ip, self._node.port) as visit:
            visit.session.set_keyspace(self._KEYSPACE)
            rows = visit.rows("SELECT * FROM mutex_locks")
        return [f"mutex_locks: {row}" for row in rows if row.ticket is not None]

    def versions(self) -> dict[str, str]:
        with Visit(self._node.ip, self._node.port) as visit:
            (row,) = visit.rows("SELECT release_version FROM system.local")
        driver = version("cassandra-driver")
        return {"Cassandra": row.release_version, "cassandra-driver": driver}

    def close(self) -> None:
        super().close()
        self._node.close()


class EtcdSite(Site):
    """A ring of three, each in a network namespace, whose leaders fail."""

    lease = 3.0
    entry_lingers = 16.0  # kept for 12 s, and clock_skew
    disk = 3072
    own_network = True
    setting = (
        "three members, each change synced, quota 64 MB, clock_skew=4,"
        " request_timeout=1"
    )
    left_out = "the members' clocks: no lease depends on them"
    _QUOTA = 64 * 2**20
    _FOLDER = "/soak"

    def _start(self) -> str:
        self._sockets = [Socket(11 + number) for number in range(MEMBERS)]
        config = {
            "quota-backend-bytes": str(self._QUOTA),
            "snapshot-count": "5000",
            "max-wals": "1",
            "max-snapshots": "1",
        }
        (home := self.folder / "etcd").mkdir()
        self._ring = EtcdRing(home, config, self._sockets)
        # Odd processes know one member, by a proxy.
        self.proxies = [
            Proxy(member.port, host=socket.ip)
            for member, socket in zip(self._ring.members, self._sockets, strict=True)
        ]
        return self._url(self._ring.url)

    def _url(self, where: str) -> str:
        return f"{where}{self._FOLDER}?clock_skew=4&request_timeout=1"

    def url_of(self, place: int) -> str:
        if place % 2 == 0:
            return self.url
        return self._url(f"etcd://127.0.0.1:{self.proxies[place // 2 % 3].port}")

    def before_of(self, place: int) -> Sequence[str]:
        """Return the clock that is set: of one process, the others' are right."""
        return self._clock.before if place == 0 else ()

    def faults(self) -> list[Fault]:
        failover = partial(Fault, weight=2, grace=10.0)
        past = (self.lease, 1.5 * self.lease)
        return [
            failover("leader killed", lambda _: self._killed()),
            failover("leader paused", lambda _: self._paused()),
            failover("leader cut off", lambda _: self._cut_off()),
            failover("leader cut off past the lease", lambda _: self._cut_off(), past),
            Fault("member killed", self._member_killed, (0, 1), 2, grace=10.0),
            Fault("two of three killed", self._two_killed, (0, 1), 1, grace=10.0),
            Fault("two of three cut off", self._two_cut_off, past, 1, grace=10.0),
            Fault("rolling restart", lambda _: self._rolled(), weight=1, grace=10.0),
            Fault("compacted", lambda _: at_once(self._compact), weight=2),
            Fault("defragmented", lambda _: at_once(self._defragment), weight=2),
            Fault(
                *("no space", lambda _: self._no_space(), (0.1, self.lease), 1),
                grace=10.0,
            ),
            *network_faults(self.proxies, self.lease),
            *self._clock_faults(fence_only=False),
        ]

    @contextmanager
    def _killed(self) -> Iterator[None]:
        leader = self._ring.leader
        leader.kill()
        self._another(leader)
        try:
            yield
        finally:
            leader.start()
            self._compact()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        leader = self._ring.leader
        leader.pause()
        try:
            self._another(leader)
            yield
        finally:
            leader.resume()
        self._compact()

    @contextmanager
    def _cut_off(self) -> Iterator[None]:
        leader = self._ring.leader
        with self._sockets[self._ring.members.index(leader)].pulled():
            self._another(leader)
            yield
        self._compact()

    def _another(self, leader: Etcd) -> None:
        others = [member for member in self._ring.members if member is not leader]
        self._ring.leader_among(others)

    @contextmanager
    def _member_killed(self, random: Random) -> Iterator[None]:
        with killed(random.choice(self._ring.members)):
            yield

    @contextmanager
    def _two_killed(self, random: Random) -> Iterator[None]:
        two = random.sample(self._ring.members, 2)
        for member in two:
            member.kill()
        try:
            yield
        finally:
            for member in two:
                member.launch()
            for member in two:
                member.wait()

    @contextmanager
    def _two_cut_off(self, random: Random) -> Iterator[None]:
        one, other = random.sample(self._sockets, 2)
        with one.pulled(), other.pulled():
            yield

    @contextmanager
    def _rolled(self) -> Iterator[None]:
        for member in self._ring.members:
            member.stop()
            member.start()
        yield

    def _compact(self) -> None:
        """Forget all but the newest revision: what was deleted gives its space back."""
        member = self._ring.leader
        answer = json.loads(member.ctl("get", "x", "--write-out=json"))
        with suppress(subprocess.CalledProcessError):  # it leads no more
            member.ctl("compact", str(answer["header"]["revision"]))

    def _defragment(self) -> None:
        for member in self._ring.members:
            member.ctl("--command-timeout=30s", "defrag")

    @contextmanager
    def _no_space(self) -> Iterator[None]:
        """Fill what the quota leaves; the members refuse all writes."""
        member = self._ring.leader
        with suppress(subprocess.CalledProcessError):
            for number in range(2 * self._QUOTA // 2**20):
                member.ctl("put", f"filler{number}", stdin="x" * 2**20)
        try:
            yield
        finally:
            until(self._made_space, "there is space again", 60)

    def _made_space(self) -> bool:
        member = self._ring.leader
        try:
            member.ctl("del", "--prefix", "filler")
            self._compact()
            self._defragment()
            member.ctl("alarm", "disarm")
            # The second is answered by a state in which the first is known to all.
            member.ctl("put", "space", "x")
        except subprocess.CalledProcessError:
            return False
        return True

    def left(self) -> list[str]:
        said = self._ring.leader.ctl("get", "--prefix", "--keys-only", self._FOLDER)
        keys = [line for line in said.splitlines() if line]
        # The doorman of a free resource is kept for an hour, and so are messages.
        kept = (",doorman", ",claim")
        own = f"{self._FOLDER}/,"
        return [k for k in keys if not k.endswith(kept) and not k.startswith(own)]

    def versions(self) -> dict[str, str]:
        said = self._ring.leader.ctl("endpoint", "status", "--write-out=json")
        found = json.loads(said)[0]["Status"]["version"]
        return {"etcd": found, "h2": version("h2")}

    def close(self) -> None:
        super().close()
        self._ring.close()
        for socket in self._sockets:
            socket.close()


# --------------------------------------------------------------------------- files


class Sqlite(Site):
    """One file in WAL mode."""

    disk = 64
    setting = "WAL, on a disk in memory"
    left_out = "server and network: there is none"

    def _start(self) -> str:
        self.before = tuple(self._clock.before)
        self._path = self.folder / "disk" / "locks.db"
        self._path.parent.mkdir(exist_ok=True)
        return f"sqlite:///{self._path}"

    def faults(self) -> list[Fault]:
        past = (self.lease, 1.2 * self.lease)
        return [
            *self._clock_faults(3600.0, fence_only=False),
            *self._disk_faults(lambda _: full(self._path.parent), 4),
            Fault(
                "file locked", lambda _: busy(self._path), (0.05, 0.5 * self.lease), 6
            ),
            Fault("file locked past the lease", lambda _: busy(self._path), past, 1),
            Fault("old snapshot kept", lambda _: self._reading(), (0.5, 2.0), 2),
        ]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The log cannot be written back, and grows."""
        with closing(sqlite3.connect(self._path, 30, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM mutex_locks").fetchall()
            yield

    def left(self) -> list[str]:
        with closing(sqlite3.connect(self._path, 30)) as other:
            rows = other.execute("SELECT * FROM mutex_locks").fetchall()
        return [f"mutex_locks: {row}" for row in rows]

    def versions(self) -> dict[str, str]:
        return {"SQLite": sqlite3.sqlite_version}


class Files(Site):
    """One directory, each lock in files of its own."""

    disk = 64
    setting = "sync=yes, on a disk in memory"
    left_out = "server and network: there is none; several hosts: see tests/faults"

    def _start(self) -> str:
        self.before = tuple(self._clock.before)
        self._path = self.folder / "disk" / "locks"
        self._path.mkdir(parents=True, exist_ok=True)
        return f"file://{self._path}"

    def faults(self) -> list[Fault]:
        past = (self.lease, 1.2 * self.lease)
        return [
            *self._clock_faults(3600.0, fence_only=False),
            *self._disk_faults(lambda _: full(self._path.parent), 4),
            Fault("record locked", self._locked, (0.05, 0.5 * self.lease), 6),
            Fault("record locked past the lease", self._locked, past, 1),
        ]

    @contextmanager
    def _locked(self, random: Random) -> Iterator[None]:
        """Another program has the lock of the record of a hot name."""
        record = self._path / f"hot,{random.randrange(HOT)}{RECORD}"
        with record.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def left(self) -> list[str]:
        return [f"mutex file: {path.name}" for path in self._path.glob(f"*{SEAT}")]

    def versions(self) -> dict[str, str]:
        return {}


SITES: dict[str, type[Site]] = {
    "redis": Redis,
    "redis-sentinel": RedisSentinel,
    "redis-cluster": RedisCluster,
    "postgresql": PostgresqlSite,
    "mariadb": MariadbSite,
    "mysql": MysqlSite,
    "cassandra": CassandraSite,
    "etcd": EtcdSite,
    "sqlite": Sqlite,
    "files": Files,
}
