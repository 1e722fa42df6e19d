"""A private etcd of one member, and a private ZooKeeper of Debian beside it.

Both write what they answer to the disk first, as users have them.
"""

from __future__ import annotations

import re
import secrets
import sys
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.etcd.adapters import KAZOO
from tests.servers.etcd import Etcd
from tests.servers.process import IP, free_port, needed, takes_connections
from tests.servers.roots import root_of
from tests.servers.server import Server as Started

SUITE, PACKAGE = "bookworm", "zookeeper"
# Of all that Debian's package depends on, what the server loads, and no log.
JARS = (
    *("zookeeper", "zookeeper-jute", "metrics-core", "snappy-java"),
    *("netty-all", "netty-common", "netty-buffer", "netty-handler", "netty-transport"),
    *("netty-codec", "netty-resolver", "slf4j-api", "slf4j-nop"),
)
_UNARY = re.compile(
    r'^grpc_server_handled_total\{.*grpc_type="unary"\} (?P<count>\d+)$', re.MULTILINE
)
_ESTABLISHED = "01"


class ZooKeeper(Started):
    """One server, with the settings that Debian's package has."""

    program = "zookeeper"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir()
        self._port = 0
        self._jars = root_of(SUITE, PACKAGE).path / "usr/share/java"
        self.begin()

    @property
    def url(self) -> str:
        return f"zookeeper://{IP}:{self._port}"

    def version(self) -> str:
        """Return the version that the jar names."""
        (jar,) = self._jars.glob("zookeeper-[0-9]*.jar")
        return jar.stem.removeprefix("zookeeper-")

    def choose_ports(self) -> None:
        self._port = free_port()

    def command(self) -> Sequence[str | Path]:
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self._port,
            "clientPortAddress": IP,
            "tickTime": 2000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        }
        file = self.folder / "zoo.cfg"
        file.write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        jars = ":".join(f"{self._jars / name}.jar" for name in JARS)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = needed("java", "default-jre-headless")
        return [java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, main, file]

    def answers(self) -> bool:
        return takes_connections(IP, self._port)


class Server:
    """The running servers."""

    def __init__(self, etcd: Etcd, zookeeper: ZooKeeper) -> None:
        self._etcd = etcd
        self._zookeeper = zookeeper
        self._round = ""
        self.empty()

    def url_for(self, peer: str, seed: int) -> str:
        """Return the URL at which a peer finds its locks in this round."""
        del seed
        if peer == KAZOO:
            return f"{self._zookeeper.url}{self._round}"
        return f"{self._etcd.url}{self._round}"

    def empty(self) -> None:
        """Give the next round a folder of its own."""
        self._etcd.ctl("del", "", "--prefix")
        self._round = f"/r{secrets.token_hex(4)}"

    def connections(self) -> int:
        """Return how many connections clients have to etcd."""
        here = f":{self._etcd.port:04X}"
        lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
        found = (line.split()[1:4] for line in lines)
        return sum(
            local.endswith(here) and state == _ESTABLISHED for local, _, state in found
        )

    def process_ids(self) -> list[int]:
        """Return the processes of both; only one has work at a time."""
        return [self._etcd.pid, self._zookeeper.pid]

    def calls(self) -> int:
        """Return how many calls etcd has answered; a watch is a stream, and none."""
        with urllib.request.urlopen(f"http://{self._etcd.endpoint}/metrics") as page:
            text: str = page.read().decode()
        return sum(int(found["count"]) for found in _UNARY.finditer(text))

    def about(self) -> dict[str, object]:
        """Return the versions of the servers."""
        said = self._etcd.ctl("version")
        (etcd,) = re.findall(r"etcdctl version: (\S+)", said)
        return {"etcd": etcd, "zookeeper": self._zookeeper.version()}


@contextmanager
def server(folder: Path, options: Namespace) -> Iterator[Server]:
    """Start the servers, and end them after the block."""
    del options
    try:
        with ExitStack() as stack:
            etcd = Etcd(folder / "etcd")
            stack.callback(etcd.close)
            zookeeper = ZooKeeper(folder / "zookeeper")
            stack.callback(zookeeper.close)
            yield Server(etcd, zookeeper)
    except pytest.fail.Exception as exc:
        sys.exit(str(exc))  # says what is to be installed
