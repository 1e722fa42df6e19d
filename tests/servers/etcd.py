"""Real etcd members, of a newer Debian suite, alone or as a ring."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import chosen
from tests.servers.certificates import Certificates
from tests.servers.network import Socket
from tests.servers.process import IP, free_port, until
from tests.servers.roots import Root, root_of
from tests.servers.server import Server
from tests.servers.shared import Facts

MEMBERS = 3


def _server() -> Root:
    return chosen.root("etcd") or root_of("sid", "etcd-server")


def etcdctl_program() -> str:
    """Where ``etcdctl`` is: foreign programs and administrators use it."""
    return root_of("sid", "etcd-client").program("etcdctl")


def etcd_command(
    folder: Path,
    ports: tuple[int, int],
    *,
    name: str = "n1",
    ring: str = "",
    certificates: Certificates | None = None,
    config: Mapping[str, str] | None = None,
    durable: bool = True,
    ip: str = IP,
) -> list[str]:
    """Start one member on (client port, peer port).

    ``durable``: whether it waits for the disk; the tests' shared one loses nothing.
    """
    scheme = "https" if certificates else "http"
    client, peer = f"{scheme}://{ip}:{ports[0]}", f"http://{ip}:{ports[1]}"
    options = {
        "name": name,
        "data-dir": str(folder / "data"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": ring or f"{name}={peer}",
        "initial-cluster-token": folder.parent.name,
        "logger": "zap",  # the only one since 3.5
        "log-outputs": str(folder / "log"),
        **(certificates.for_etcd() if certificates else {}),
        **(config or {}),
    }
    given = [f"--{option}={text}" for option, text in options.items()]
    return [
        _server().program("etcd"),
        *given,
        *([] if durable else ["--unsafe-no-fsync"]),
    ]


def etcdctl(endpoint: str, *args: str, stdin: str | None = None) -> str:
    """Return what ``etcdctl`` prints; raise ``CalledProcessError`` if it fails."""
    command = [etcdctl_program(), f"--endpoints={endpoint}", *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, input=stdin
    ).stdout


def is_healthy(endpoint: str, *args: str) -> bool:
    """Whether a member answers a linearizable read: there is a leader."""
    try:
        etcdctl(endpoint, "--command-timeout=1s", "get", "probe", *args)
    except subprocess.CalledProcessError as exc:
        return "user name is empty" in exc.stderr
    return True


class Etcd(Server):
    """One member of a test's own, to be stopped and killed. It keeps its files."""

    program = "etcd"

    def __init__(
        self,
        folder: Path,
        *,
        certificates: Certificates | None = None,
        config: Mapping[str, str] | None = None,
        ports: tuple[int, int] | None = None,
        ring: str = "",
        name: str = "n1",
        ip: str = IP,
    ) -> None:
        """``ring``: all members of a ring, which answers when most of them run; then
        the caller starts it with ``launch`` and ``wait``.
        """
        super().__init__(folder)
        folder.mkdir(exist_ok=True)
        self._certificates = certificates
        self._config = config
        self._ports = ports or (0, 0)
        self._ring = ring
        self._name = name
        self._ip = ip
        if not ring:
            self.begin()

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def address(self) -> str:
        return f"{self._ip}:{self.port}"

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    @property
    def tls_url(self) -> str:
        """With our own certificate, which it may want to see."""
        files = self._certificates
        assert files is not None
        return (
            f"etcds://localhost:{self.port}?ca_file={files.authority}"
            f"&cert_file={files.certificate}&key_file={files.key}"
        )

    def ctl(self, *args: str, stdin: str | None = None) -> str:
        return etcdctl(self.endpoint, *self._files(), *args, stdin=stdin)

    @property
    def endpoint(self) -> str:
        return f"https://localhost:{self.port}" if self._certificates else self.address

    @property
    def is_leader(self) -> bool:
        said = self.ctl("endpoint", "status", "--write-out=json")
        status = json.loads(said)[0]["Status"]
        return bool(status["leader"] == status["header"]["member_id"])

    def choose_ports(self) -> None:
        self._ports = free_port(), free_port()

    def command(self) -> Sequence[str | Path]:
        return etcd_command(
            self.folder,
            self._ports,
            name=self._name,
            ring=self._ring,
            certificates=self._certificates,
            config=self._config,
            ip=self._ip,
        )

    def answers(self) -> bool:
        return is_healthy(self.endpoint, *self._files())

    def _files(self) -> tuple[str, ...]:
        files = self._certificates
        if files is None:
            return ()
        shown = {"cacert": files.authority, "cert": files.certificate, "key": files.key}
        return tuple(f"--{name}={path}" for name, path in shown.items())


class EtcdRing:
    """Three members, which elect a leader; all of them answer at first."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, str] | None = None,
        sockets: Sequence[Socket] = (),
    ) -> None:
        """``sockets``: each member's place in a network of its own; else loopback."""
        ports = [(free_port(), free_port()) for _ in range(MEMBERS)]
        ips = [socket.ip for socket in sockets] or [IP] * MEMBERS
        names = [f"n{number + 1}" for number in range(MEMBERS)]
        ring = ",".join(
            f"{name}=http://{ip}:{peer}"
            for name, ip, (_, peer) in zip(names, ips, ports, strict=True)
        )
        self.members: list[Etcd] = [
            Etcd(folder / name, config=config, ports=own, ring=ring, name=name, ip=ip)
            for name, own, ip in zip(names, ports, ips, strict=True)
        ]
        for member, socket in zip(self.members, sockets, strict=False):
            member.before = socket.before
        try:
            for member in self.members:
                member.launch()
            for member in self.members:
                member.wait()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"etcd://{','.join(member.address for member in self.members)}"

    @property
    def leader(self) -> Etcd:
        """The leader, once a member that runs says that it is."""
        return self.leader_among(self.members)

    def leader_among(self, members: Sequence[Etcd]) -> Etcd:
        """The leader, once it is one of these; a member that is cut off is not asked,
        as it may believe that it leads.
        """
        found: list[Etcd] = []

        def elected() -> bool:
            for member in members:
                try:
                    if member.is_leader:
                        found.append(member)
                        return True
                except (subprocess.CalledProcessError, KeyError):
                    continue
            return False

        until(elected, "the ring has a leader")
        return found[0]

    def close(self) -> None:
        for member in self.members:
            member.close()


def prepare(folder: Path) -> tuple[list[str], Facts]:
    """Return the command of the tests' shared member, and what its users must know."""
    ports = free_port(), free_port()
    return etcd_command(folder, ports, durable=False), {"port": ports[0]}
