"""A real Apache Cassandra, out of the jars that Maven Central has of it.

There is no package of it for Debian; the jars and a configuration of a page are all a
node needs. They are fetched once, by Maven, into the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.servers.process import ServerProcess, until
from tests.servers.shared import file_lock

VERSION = "5.0.9"
NEEDS = "apt-get install openjdk-17-jre-headless maven"
ATTEMPTS = 5
STARTS_IN = 120.0

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>cassandra-runtime</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId>
      <artifactId>cassandra-all</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""

_YAML = """\
cluster_name: locks
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
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
    "paxos_variant": "v2",
    "paxos_state_purging": "repaired",
    "authenticator": "AllowAllAuthenticator",
    "authorizer": "AllowAllAuthorizer",
}

_LOGBACK = """\
<configuration>
  <appender name="F" class="ch.qos.logback.core.FileAppender">
    <file>{folder}/system.log</file>
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


def program(name: str) -> str:
    """Java or Maven; without it the test fails and names what to install."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: {NEEDS}")
    return path


def jars(version: str = VERSION) -> Path:
    """The folder of Cassandra's jars, fetched if they are not there yet."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(home) / "aiorwlock-remote-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"cassandra-{version}"
    with file_lock(cache / f"cassandra-{version}.lock"):
        if not folder.exists():
            _fetch(version, folder)
    return folder


def _fetch(version: str, folder: Path) -> None:
    fetching = folder.with_name(folder.name + ".part")
    shutil.rmtree(fetching, ignore_errors=True)  # of somebody who was killed
    fetching.mkdir()
    pom = fetching / "pom.xml"
    pom.write_text(_POM.format(version=version))
    done = subprocess.run(
        [
            *(program("mvn"), "-q", "-B", "-f", pom),
            "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies",
            f"-DoutputDirectory={fetching}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        pytest.fail(f"Maven could not fetch Cassandra {version}: {said}")
    fetching.rename(folder)


def node_command(
    folder: Path,
    *,
    port: int,
    storage_port: int,
    ip: str = "127.0.0.1",
    seed: str = "127.0.0.1",
    config: Mapping[str, str] | None = None,
) -> list[str]:
    """What starts a node whose files are all in ``folder``."""
    java, lib = program("java"), jars()
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    text = _YAML.format(
        folder=folder, ip=ip, seed=seed, port=port, storage_port=storage_port
    )
    lines = _DEFAULTS | dict(config or {})
    if lines["commitlog_sync"] != "periodic":
        del lines["commitlog_sync_period"]
    text += "".join(f"{name}: {value}\n" for name, value in lines.items())
    (conf / "cassandra.yaml").write_text(text)
    (conf / "logback.xml").write_text(_LOGBACK.format(folder=folder))
    properties = _PROPERTIES | {
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


def free_port(*ips: str) -> int:
    """A port that is free at each of these addresses."""
    while True:
        with socket.create_server((ips[0], 0)) as first:
            port: int = first.getsockname()[1]
            if all(_is_free(ip, port) for ip in ips[1:]):
                return port


def _is_free(ip: str, port: int) -> bool:
    try:
        with socket.create_server((ip, port)):
            return True
    except OSError:
        return False


def takes_connections(ip: str, port: int) -> bool:
    try:
        with socket.create_connection((ip, port), 1):
            return True
    except OSError:
        return False


def log_of(folder: Path) -> str:
    file = folder / "system.log"
    return file.read_text()[-4000:] if file.exists() else "(no log)"


class CassandraNode:
    """One node on the loopback, alone unless told of a seed.

    ``config``: lines of its configuration file beside ours. Started when the
    constructor returns, unless ``wait=False``; then see ``wait``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ip: str = "127.0.0.1",
        seed: str = "127.0.0.1",
        ports: tuple[int, int] | None = None,
        config: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        self.folder: Path = folder
        self.ip: str = ip
        self._seed = seed
        self._config = dict(config or {})
        self._process: ServerProcess | None = None
        for _ in range(ATTEMPTS):  # a port may be taken between choice and use
            self.port, self._storage_port = ports or (free_port(ip), free_port(ip))
            self._launch()
            if not wait or self._started():
                return
            if "Address already in use" not in log_of(folder):
                break
        raise RuntimeError(f"Cassandra does not start: {log_of(folder)}")

    @property
    def url(self) -> str:
        """Without a keyspace."""
        return f"cassandra://{self.ip}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Until it takes connections."""
        if not self._started():
            raise RuntimeError(f"Cassandra does not start: {log_of(self.folder)}")

    def kill(self) -> None:
        """At once. What it acknowledged in the last second may be gone."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def stop(self) -> None:
        """In order: nothing it acknowledged is lost."""
        if self._process is not None:
            process = self._process
            process.signal(signal.SIGTERM)
            until(lambda: not process.alive(), "Cassandra has ended", 60.0)
            self.kill()

    def start(self) -> None:
        """Again, on the same ports and data."""
        self._launch()
        self.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Its connections stay (the kernel keeps them), and it says nothing."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def _launch(self) -> None:
        (self.folder / "system.log").unlink(missing_ok=True)
        command = node_command(
            self.folder,
            port=self.port,
            storage_port=self._storage_port,
            ip=self.ip,
            seed=self._seed,
            config=self._config,
        )
        self._process = ServerProcess(*command)

    def _started(self) -> bool:
        process = self._process
        assert process is not None
        until(
            lambda: takes_connections(self.ip, self.port) or not process.alive(),
            "Cassandra takes connections",
            STARTS_IN,
        )
        if process.alive():
            return True
        self.kill()
        return False
