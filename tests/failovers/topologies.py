"""The stores whose leader is replaced: one adapter for each topology.

Where clients do not find the new leader by themselves, a proxy at one address leads
them there, as a virtual address or HAProxy does, and ends the old connections.
"""

from __future__ import annotations

import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import anyio
import hiredis
import psycopg

from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.failovers.client import KIND
from tests.servers.cassandra_ring import CassandraRing, Visit
from tests.servers.cluster import Cluster
from tests.servers.etcd import Etcd, EtcdRing
from tests.servers.fix_mariadb import make_tables as make_mariadb_tables
from tests.servers.fix_postgresql import make_tables as make_postgresql_tables
from tests.servers.mariadb import Mariadb, run
from tests.servers.mysql_group import GroupMember, MysqlGroup
from tests.servers.postgresql import Postgresql, Standby
from tests.servers.process import IP, until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import NAME, SentinelGroup, cut_off
from tests.servers.server import Server

BEHIND = 1.0
"""Seconds for which no change reaches the other servers before a leader is killed."""
NAMES = 48


class Topology(ABC):
    """Servers of one store in a folder of their own, one of which leads.

    ``setting`` names them in the table; ``promoted_by``: who replaces the leader.
    """

    setting: ClassVar[str]
    promoted_by: ClassVar[str]
    ways: ClassVar[Sequence[str]] = ("planned", "killed", "behind")

    def __init__(self, folder: Path) -> None:
        """Start the servers."""
        self.folder = folder
        self.url = self._start()

    @abstractmethod
    def _start(self) -> str:
        """Start the servers; return the URL of the clients."""

    @abstractmethod
    def planned(self) -> None:
        """Replace the leader in order."""

    @abstractmethod
    def killed(self) -> None:
        """Kill the leader, and have it replaced."""

    def behind(self) -> None:
        """Kill the leader when the others have missed its last changes."""
        self.hold_back()
        time.sleep(BEHIND)
        self.killed()

    @abstractmethod
    def hold_back(self) -> None:
        """Let no change reach the other servers until ``killed`` or ``make_whole``."""

    @abstractmethod
    def make_whole(self) -> None:
        """Start again what was killed, and wait until it follows the new leader."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of the server and of the driver."""

    @abstractmethod
    def close(self) -> None:
        """End all servers."""

    def names(self) -> list[int]:
        """Return the names that are locked: those that the leader has."""
        return list(range(NAMES))


# ---------------------------------------------------------------------------- Redis


def redis_versions(server: RedisServer) -> dict[str, str]:
    lines = server.ask("INFO", "server").decode().splitlines()
    (found,) = (line for line in lines if line.startswith("redis_version:"))
    return {"redis-server": found.partition(":")[2], "hiredis": version("hiredis")}


class RedisAlone(Topology):
    """One server, which is started again: no other takes its place."""

    setting = "Redis alone, without persistence"
    promoted_by = "the same server, started again at once"
    ways = ("planned", "killed")
    config: ClassVar[dict[str, str]] = {}

    def _start(self) -> str:
        (home := self.folder / "redis").mkdir()
        self._server = RedisServer(home, config=self.config)
        return self._server.url

    def planned(self) -> None:
        self._server.stop()
        self._server.start()

    def killed(self) -> None:
        self._server.restart()

    def hold_back(self) -> None:
        raise NotImplementedError("no other server follows")

    def make_whole(self) -> None:
        """Nothing is missing."""

    def versions(self) -> dict[str, str]:
        return redis_versions(self._server)

    def close(self) -> None:
        self._server.close()


class RedisAloneAof(RedisAlone):
    """The same, with a log that is synced before each reply."""

    setting = "Redis alone, `appendonly yes`, `appendfsync always`"
    config: ClassVar[dict[str, str]] = {"appendonly": "yes", "appendfsync": "always"}


class RedisSentinel(Topology):
    """A primary, two replicas and three Sentinels."""

    setting = "Redis, two replicas, Sentinel"
    promoted_by = "Sentinel (`down-after-milliseconds 2000`)"
    options: ClassVar[str] = ""

    def _start(self) -> str:
        self._group = SentinelGroup(self.folder, down_after=2)
        self._old: RedisServer | None = None
        return f"{self._group.url}?command_timeout=2{self.options}"

    def planned(self) -> None:
        old = self._group.primary
        until(self._begun, "a Sentinel begins the failover", 40, every=0.1)
        self._group.await_another(old)

    def _begun(self) -> bool:
        try:
            self._group.sentinels[0].ask("SENTINEL", "FAILOVER", NAME)
        except hiredis.ReplyError:
            return False
        return True

    def killed(self) -> None:
        self._old = self._group.primary
        self._old.kill()
        self._group.await_another(self._old)

    def hold_back(self) -> None:
        cut_off(self._group.primary)

    def start_again(self) -> None:
        """Start a killed server; Sentinel makes it a replica."""
        if self._old is not None:
            self._old.start()
            self._old = None

    def make_whole(self) -> None:
        self.start_again()
        primary = self._group.primary
        until(lambda: self._group.in_step(primary, 2), "replicas are in step", 60)

    def versions(self) -> dict[str, str]:
        return redis_versions(self._group.primary)

    def close(self) -> None:
        self._group.close()


class RedisSentinelWaits(RedisSentinel):
    """The same; each grant waits for one replica."""

    setting = "Redis, two replicas, Sentinel, `min_replicas=1`"
    options = "&min_replicas=1"


class RedisSentinelWaitsForAll(RedisSentinel):
    """The same; each grant waits for both, so a killed server is needed again."""

    setting = "Redis, two replicas, Sentinel, `min_replicas=2`"
    promoted_by = f"{RedisSentinel.promoted_by}; the killed server is started again"
    options = "&min_replicas=2"

    def killed(self) -> None:
        super().killed()
        self.start_again()


class RedisCluster(Topology):
    """Three primaries with a replica each; all locks live on the one that goes."""

    setting = "Redis Cluster, a replica for each primary"
    promoted_by = "the cluster (`cluster-node-timeout 1000`)"
    options: ClassVar[str] = ""

    def _start(self) -> str:
        self._cluster = Cluster(self.folder, node_timeout=1.0)
        self._old: RedisServer | None = None
        self._slot = _slot(0)
        return f"{self._cluster.url}?command_timeout=2{self.options}"

    def names(self) -> list[int]:
        owner = self._cluster.owner(self._slot)
        owned = (n for n in range(10 * NAMES) if self._owner(n) is owner)
        return [next(owned) for _ in range(NAMES)]

    def _owner(self, name: int) -> RedisServer:
        return self._cluster.owner(_slot(name))

    def planned(self) -> None:
        old = self._owner(0)
        self._replica(old).ask("CLUSTER", "FAILOVER")
        self._cluster.await_another(self._slot, old)

    def killed(self) -> None:
        self._old = self._owner(0)
        self._old.kill()
        self._cluster.await_another(self._slot, self._old)
        # As whoever supervises a server does: with `min_replicas` it is needed.
        self._old.start()

    def _replica(self, primary: RedisServer) -> RedisServer:
        port = int(primary.ask("ROLE")[2][0][1])
        return next(s for s in self._cluster.servers if s.port == port)

    def hold_back(self) -> None:
        cut_off(self._owner(0))

    def make_whole(self) -> None:
        owner = self._owner(0)
        until(lambda: bool(owner.ask("ROLE")[2]), "the primary has a replica", 60)
        write = ("PUBLISH", "in step", "?"), ("WAIT", 1, 100)
        until(lambda: bool(owner.ask_all(*write)[1]), "the replica is in step", 60)

    def versions(self) -> dict[str, str]:
        return redis_versions(self._cluster.servers[0])

    def close(self) -> None:
        self._cluster.close()


class RedisClusterWaits(RedisCluster):
    """The same; each grant waits for the replica."""

    setting = "Redis Cluster, a replica for each primary, `min_replicas=1`"
    options = "&min_replicas=1"


def _slot(name: int) -> int:
    return slot_of(f"mutex_locks/{KIND},{name}".encode())


# ------------------------------------------------------------------------- databases


def kill_with_children(server: Server) -> None:
    """Kill a server as a power failure does: its children go with it."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    for pid in (server.pid, *map(int, children.split())):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.kill()


class PostgresqlStandby(Topology):
    """A primary and a standby that is sent the log; it is promoted by our hand."""

    setting = "PostgreSQL, a standby, asynchronous"
    promoted_by = "`pg_promote()`, at once"
    waits: ClassVar[bool] = False

    def _start(self) -> str:
        self._count = 0
        (home := self.folder / "first").mkdir()
        self._primary = Postgresql(home, {"wal_level": "replica", "hot_standby": "on"})
        make_postgresql_tables(self._primary.url)
        self._link = Proxy(self._primary.port)
        self._front = Proxy(self._primary.port)
        self._follow()
        return self._primary.url.replace(
            f":{self._primary.port}/", f":{self._front.port}/"
        )

    def _follow(self) -> None:
        """Make a new standby of a copy, and wait until it follows."""
        self._count += 1
        (home := self.folder / f"copy{self._count}").mkdir()
        self._link.black_hole(on=False)
        self._link.lead_to(self._primary.port)
        self._link.cut()
        self._standby = Standby(home, self._primary, self._link.port)
        until(
            lambda: self._ask("SELECT count(*) FROM pg_stat_replication") == 1,
            "the standby follows",
        )
        if self.waits:
            self._set("'*'")

    def _ask(self, query: str) -> object:
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
            return row and row[0]

    def _set(self, names: str) -> None:
        """Set which standbys a commit waits for."""
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
            connection.execute("SELECT pg_reload_conf()")

    def planned(self) -> None:
        self._primary.stop()  # sends the rest of its log first
        self._promote()

    def killed(self) -> None:
        kill_with_children(self._primary)
        self._promote()

    def _promote(self) -> None:
        """Promote the standby, which waits for none itself, and lead clients there."""
        with psycopg.connect(self._standby.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_promote()")
        self._front.lead_to(self._standby.port)
        self._front.cut()
        self._primary.close()
        self._primary = self._standby

    def hold_back(self) -> None:
        self._link.black_hole(on=True)

    def make_whole(self) -> None:
        self._follow()

    def versions(self) -> dict[str, str]:
        found = str(self._ask("SHOW server_version"))
        return {"PostgreSQL": found, "asyncpg": version("asyncpg")}

    def close(self) -> None:
        for proxy in (self._front, self._link):
            proxy.close()
        for server in {self._primary, self._standby}:
            server.close()


class PostgresqlWaits(PostgresqlStandby):
    """The same; a commit waits for the standby."""

    setting = "PostgreSQL, a standby, `synchronous_standby_names`"
    waits = True


class MariadbReplica(Topology):
    """A primary and a replica, by GTIDs; the replica is promoted by our hand."""

    setting = "MariaDB, a replica, asynchronous"
    promoted_by = "`STOP SLAVE`, `read_only=0`, at once"
    waits: ClassVar[bool] = False

    def _start(self) -> str:
        self._count = 0
        self._primary = self._server()
        run(
            self._primary.root,
            "CREATE DATABASE app",
            "CREATE USER app",  # whom `read_only` stops, unlike root
            "GRANT ALL ON app.* TO app",
        )
        make_mariadb_tables(self._primary.url)
        self._link = Proxy(self._primary.port)
        self._front = Proxy(self._primary.port)
        self._follow(self._server())
        return f"mariadb://app@{IP}:{self._front.port}/app"

    def _server(self) -> Mariadb:
        self._count += 1
        (home := self.folder / f"server{self._count}").mkdir()
        config = {
            "log-bin": "changes",
            "binlog-format": "ROW",
            "log-slave-updates": "ON",
            "server-id": str(self._count),
            "gtid-strict-mode": "ON",
            # The system stays up: what was written survives a kill without a sync, and
            # a replica, which writes one change after the other, keeps up.
            "sync-binlog": "0",
            "innodb-flush-log-at-trx-commit": "2",
            "slave-parallel-threads": "4",
            "rpl-semi-sync-slave-enabled": "ON" if self.waits else "OFF",
            "rpl-semi-sync-master-wait-point": "AFTER_SYNC",
            "rpl-semi-sync-master-timeout": "3600000",
        }
        return Mariadb(home, config)

    def _follow(self, replica: Mariadb) -> None:
        """Let a server that has nothing, or nothing else, follow the primary."""
        self._replica = replica
        self._link.black_hole(on=False)
        self._link.lead_to(self._primary.port)
        self._link.cut()
        run(
            replica.root,
            "SET GLOBAL read_only = 1",
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1',"
            f" MASTER_PORT = {self._link.port}, MASTER_USER = 'root',"
            " MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos",
            "START SLAVE",
        )
        until(self._level, "the replica follows", 120, every=0.05)
        if self.waits:
            run(self._primary.root, "SET GLOBAL rpl_semi_sync_master_enabled = 1")

    def _level(self) -> bool:
        """Return whether the replica has all that the primary has had a moment ago."""
        ((wanted,),) = run(self._primary.root, "SELECT @@gtid_binlog_pos")
        wait = f"SELECT MASTER_GTID_WAIT('{wanted}', 1)"
        ((waited,),) = run(self._replica.root, wait)
        return bool(waited == 0)

    def planned(self) -> None:
        run(self._primary.root, "SET GLOBAL read_only = 1")
        until(self._level, "the replica has all")
        self._promote()
        run(
            self._primary.root,
            "SET GLOBAL rpl_semi_sync_master_enabled = 0",
            "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos",
        )
        self._primary, self._spare = self._replica, self._primary

    def killed(self) -> None:
        self._primary.kill()
        self._promote()
        self._primary.close()
        self._primary, self._spare = self._replica, None

    _spare: Mariadb | None = None

    def _promote(self) -> None:
        # What it was sent, it applies first.
        run(self._replica.root, "STOP SLAVE IO_THREAD")
        until(self._applied, "the relay log is applied")
        run(
            self._replica.root,
            "STOP SLAVE",
            "RESET SLAVE ALL",
            "SET GLOBAL read_only = 0",
        )
        self._front.lead_to(self._replica.port)
        self._front.cut()

    def _applied(self) -> bool:
        states = run(
            self._replica.root, "SELECT STATE FROM information_schema.processlist"
        )
        return any("has read all relay log" in str(state) for (state,) in states)

    def hold_back(self) -> None:
        self._link.black_hole(on=True)

    def make_whole(self) -> None:
        self._follow(self._spare or self._server())

    def versions(self) -> dict[str, str]:
        ((found,),) = run(self._primary.root, "SELECT VERSION()")
        return {"MariaDB": found, "asyncmy": version("asyncmy")}

    def close(self) -> None:
        for proxy in (self._front, self._link):
            proxy.close()
        for server in {self._primary, self._replica}:
            server.close()


class MariadbSemiSync(MariadbReplica):
    """The same; a commit waits for the replica, and never falls back."""

    setting = "MariaDB, a replica, semi-synchronous (`AFTER_SYNC`, no fall-back)"
    waits = True


class MysqlThree(Topology):
    """Three members of group replication, one of them the primary."""

    setting = "MySQL, group replication of three"
    promoted_by = "the group (`member_expel_timeout 0`); a proxy follows it"

    def _start(self) -> str:
        self._group = MysqlGroup(self.folder)
        self._primary = self._group.members[0]
        self._old: GroupMember | None = None
        for member in self._group.members:
            self._hasten(member)
        run(self._primary.root, "CREATE DATABASE app")
        make_mariadb_tables(self._primary.url)
        self._front = Proxy(self._primary.port)
        return self._primary.url.replace(
            f":{self._primary.port}/", f":{self._front.port}/"
        )

    def _hasten(self, member: GroupMember) -> None:
        run(
            member.root,
            # The system stays up, see MariadbReplica: one that joins again catches up.
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
            "SET GLOBAL sync_binlog = 0",
            "SET GLOBAL group_replication_member_expel_timeout = 0",
        )

    def _others(self) -> list[GroupMember]:
        return [each for each in self._group.members if each is not self._primary]

    def _lead(self, *members: GroupMember) -> None:
        self._primary = self._group.primary(*members)
        self._front.lead_to(self._primary.port)
        self._front.cut()

    def planned(self) -> None:
        self._group.make_primary(self._others()[0])
        self._lead(*self._group.members)

    def killed(self) -> None:
        self._old, others = self._primary, self._others()
        self._old.kill()
        for each in others:
            each.resume()
        self._lead(*others)

    def hold_back(self) -> None:
        for each in self._others():
            each.pause()

    def make_whole(self) -> None:
        if self._old is not None:
            self._old.start()
            self._hasten(self._old)
            self._old.joins()
            self._old = None
        self._group.together(*self._group.members)

    def versions(self) -> dict[str, str]:
        ((found,),) = run(self._primary.root, "SELECT VERSION()")
        return {"MySQL": found, "asyncmy": version("asyncmy")}

    def close(self) -> None:
        self._front.close()
        self._group.close()


# -------------------------------------------------------------------------- majorities


class EtcdThree(Topology):
    """Three members."""

    setting = "etcd, three members"
    promoted_by = "the members"

    def _start(self) -> str:
        self._ring = EtcdRing(self.folder)
        self._old: Etcd | None = None
        return self._ring.url

    def planned(self) -> None:
        leader = self._ring.leader
        status = json.loads(leader.ctl("endpoint", "status", "--write-out=json"))
        me = status[0]["Status"]["header"]["member_id"]
        found = json.loads(leader.ctl("member", "list", "--write-out=json"))
        other = next(m["ID"] for m in found["members"] if m["ID"] != me)
        leader.ctl("move-leader", f"{other:x}")

    def killed(self) -> None:
        self._old = self._ring.leader if self._old is None else self._old
        self._old.kill()
        self._resume()

    def _resume(self) -> None:
        for member in self._ring.members:
            if member is not self._old:
                member.resume()

    def hold_back(self) -> None:
        self._old = self._ring.leader
        for member in self._ring.members:
            if member is not self._old:
                member.pause()

    def make_whole(self) -> None:
        if self._old is not None:
            self._old.start()
            self._old = None

    def versions(self) -> dict[str, str]:
        found = self._ring.members[0].ctl("version").split()
        return {"etcd": found[found.index("version:") + 1], "h2": version("h2")}

    def close(self) -> None:
        self._ring.close()


class CassandraThree(Topology):
    """Three nodes that hold every row. None leads; the first is the one that goes."""

    setting = "Cassandra, three nodes, replication factor 3"
    promoted_by = "nobody: the two others are a majority"
    ways = ("planned", "killed")

    def _start(self) -> str:
        config = {"commitlog_sync": "batch"}
        self._ring = CassandraRing(self.folder, config=config)
        with Visit(self._ring.nodes[0].ip, self._ring.port) as visit:
            visit.rows(
                "CREATE KEYSPACE app WITH replication ="
                " {'class': 'SimpleStrategy', 'replication_factor': 3}"
            )
            anyio.run(CassandraBackend(visit.session, "app").create_schema)
        return f"{self._ring.url}/app"

    def planned(self) -> None:
        self._ring.nodes[0].stop()  # drains

    def killed(self) -> None:
        self._ring.nodes[0].kill()

    def hold_back(self) -> None:
        raise NotImplementedError("no node has what no majority has")

    def make_whole(self) -> None:
        self._ring.nodes[0].start()

    def versions(self) -> dict[str, str]:
        with Visit(self._ring.nodes[1].ip, self._ring.port) as visit:
            (row,) = visit.rows("SELECT release_version FROM system.local")
        return {
            "Cassandra": row.release_version,
            "cassandra-driver": version("cassandra-driver"),
        }

    def close(self) -> None:
        self._ring.close()


TOPOLOGIES: dict[str, type[Topology]] = {
    "redis": RedisAlone,
    "redis-aof": RedisAloneAof,
    "redis-sentinel": RedisSentinel,
    "redis-sentinel-min-replicas": RedisSentinelWaits,
    "redis-sentinel-all-replicas": RedisSentinelWaitsForAll,
    "redis-cluster": RedisCluster,
    "redis-cluster-min-replicas": RedisClusterWaits,
    "postgresql": PostgresqlStandby,
    "postgresql-synchronous": PostgresqlWaits,
    "mariadb": MariadbReplica,
    "mariadb-semi-synchronous": MariadbSemiSync,
    "mysql-group": MysqlThree,
    "etcd": EtcdThree,
    "cassandra": CassandraThree,
}
