"""A real Apache Cassandra: its jars and a configuration of a page are all it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.servers import chosen
from tests.servers.cassandra_jars import jars
from tests.servers.clock import off_by
from tests.servers.process import IP, free_port, needed, takes_connections
from tests.servers.server import Server

STARTS_IN = 240.0
LOG = "system.log"
CENTRE = "datacenter1"
PAXOS = "CASSANDRA_PAXOS"
"""The environment variable that may say v1; see ``nox -s paxos_v1``."""

_YAML = """\
cluster_name: locks
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{seed}"}}]
listen_address: {ip}
rpc_address: {ip}
storage_port: {storage_port}
start_native_transport: true
native_transport_port: {port}
data_file_directories: [{folder}/data/data]
commitlog_directory: {folder}/data/commitlog
saved_caches_directory: {folder}/data/saved_caches
hints_directory: {folder}/data/hints
cdc_enabled: false
commitlog_segment_size: 8MiB
commitlog_total_space: 64MiB
memtable_heap_space: 64MiB
memtable_offheap_space: 32MiB
key_cache_size: 0MiB
file_cache_size: 32MiB
networking_cache_size: 32MiB
auto_snapshot: false
disk_failure_policy: stop
commit_failure_policy: stop
concurrent_compactors: 1
hinted_handoff_enabled: true
cas_contention_timeout: 1800ms
write_request_timeout: 2000ms
read_request_timeout: 5000ms
request_timeout: 10000ms
"""

_DEFAULTS = {
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "1000ms",
    "authenticator": "AllowAllAuthenticator",
    "authorizer": "AllowAllAuthorizer",
}

_PAXOS = {
    "v1": {"paxos_variant": "v1", "paxos_state_purging": "legacy"},
    "v2": {"paxos_variant": "v2", "paxos_state_purging": "repaired"},
}

_LOGBACK = """\
<configuration>
  <appender name="F" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5level %logger{{0}} %m%n</pattern></encoder>
  </appender>
  <logger name="ROOT" level="INFO"><appender-ref ref="F"/></logger>
</configuration>
"""

_OPENS = """
java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect
java.base/java.io java.base/java.nio java.base/java.util java.base/java.util.concurrent
java.base/java.util.concurrent.atomic java.base/sun.nio.ch
java.base/jdk.internal.loader java.base/jdk.internal.ref java.base/jdk.internal.reflect
java.base/jdk.internal.math java.base/jdk.internal.module
java.base/jdk.internal.util.jar jdk.management/com.sun.management.internal
"""
_EXPORTS = """
java.base/jdk.internal.misc java.base/java.lang.ref java.sql/java.sql
jdk.unsupported/sun.misc java.management.rmi/com.sun.jmx.remote.internal.rmi
java.rmi/sun.rmi.registry java.rmi/sun.rmi.server jdk.attach/sun.tools.attach
"""
_PROPERTIES = {
    "jdk.attach.allowAttachSelf": "true",
    "io.netty.tryReflectionSetAccessible": "true",
    "cassandra-foreground": "yes",
    "java.security.manager": "allow",  # it sets one, which Java 21 refuses otherwise
    # 100 would do for the first start, but a node started again would find no peers.
    "cassandra.ring_delay_ms": "5000",
    "cassandra.broadcast_interval_ms": "100",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.consistent.rangemovement": "false",
    "cassandra.auto_bootstrap": "false",
    "cassandra.superuser_setup_delay_ms": "0",
    "cassandra.allow_unlimited_concurrent_validations": "true",
    "cassandra.jmx.local.port": "0",
}

_FORGETFUL = {
    "cassandra.unsafesystem": "true",
    "cassandra.test.flush_local_schema_changes": "false",
}
"""Changes of the schema are quicker, and gone after a restart."""


def _java() -> str:
    root = chosen.root("java")
    return root.program("java") if root else needed("java", "default-jre-headless")


def node_command(
    folder: Path,
    *,
    port: int,
    storage_port: int,
    ip: str = IP,
    seed: str = IP,
    centre: str = CENTRE,
    config: Mapping[str, str] | None = None,
    restarts: bool = True,
) -> list[str]:
    """What starts a node whose files are all in ``folder``.

    ``restarts``: whether it is to know its tables when it is started again.
    """
    java, lib = _java(), jars()
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    text = _YAML.format(
        folder=folder, ip=ip, seed=seed, port=port, storage_port=storage_port
    )
    lines = _DEFAULTS | _PAXOS[os.environ.get(PAXOS, "v2")] | dict(config or {})
    if lines["commitlog_sync"] != "periodic":
        del lines["commitlog_sync_period"]
    text += "".join(f"{name}: {value}\n" for name, value in lines.items())
    (conf / "cassandra.yaml").write_text(text)
    (conf / "logback.xml").write_text(_LOGBACK.format(log=folder / LOG))
    (conf / "place.properties").write_text(f"dc={centre}\nrack=rack1\n")
    properties = ({} if restarts else _FORGETFUL) | _PROPERTIES
    properties |= {
        "cassandra-rackdc.properties": f"file://{conf}/place.properties",
        "cassandra.config": f"file://{conf}/cassandra.yaml",
        "logback.configurationFile": f"{conf}/logback.xml",
        "cassandra.storagedir": f"{folder}/data",
    }
    return [
        java,
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS.split()),
        *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS.split()),
        *("-Xms64m", "-Xmx256m", "-Xss512k", "-XX:MaxDirectMemorySize=128m"),
        *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        f"-XX:ErrorFile={folder}/hs_err.log",
        *(f"-D{name}={value}" for name, value in properties.items()),
        *("-cp", f"{lib}/*", "org.apache.cassandra.service.CassandraDaemon"),
    ]


class CassandraNode(Server):
    """One node on the loopback, alone unless given a seed.

    ``config``: lines of its configuration file beside ours. It serves when the
    constructor returns, unless ``ports`` are given: then it was only launched. What it
    acknowledged in the last second before a ``kill`` may be gone. ``clock``: seconds by
    which its wall clock is ahead. ``centre``: its data centre.
    """

    program = "Cassandra"
    starts_in = STARTS_IN
    log_name = LOG

    def __init__(
        self,
        folder: Path,
        *,
        ip: str = IP,
        seed: str = IP,
        ports: tuple[int, int] | None = None,
        config: Mapping[str, str] | None = None,
        clock: int = 0,
        centre: str = CENTRE,
    ) -> None:
        super().__init__(folder)
        self.ip: str = ip
        self._centre = centre
        self._clock = clock
        self._seed = seed
        self._config = dict(config or {})
        self.port, self._storage_port = ports or (0, 0)
        if ports is None:
            self.begin()
        else:
            self.launch()

    @property
    def url(self) -> str:
        """Without a keyspace."""
        return f"cassandra://{self.ip}:{self.port}"

    def choose_ports(self) -> None:
        self.port, self._storage_port = free_port(self.ip), free_port(self.ip)

    def command(self) -> list[str]:
        command = node_command(
            self.folder,
            port=self.port,
            storage_port=self._storage_port,
            ip=self.ip,
            seed=self._seed,
            centre=self._centre,
            config=self._config,
        )
        return [*off_by(self._clock, self.folder), *command]

    def answers(self) -> bool:
        return takes_connections(self.ip, self.port)

    def close(self) -> None:
        """Gone, with its data."""
        super().close()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
