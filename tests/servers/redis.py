"""A real redis-server in a folder of its own."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hiredis

from tests.servers import chosen
from tests.servers.certificates import Certificates
from tests.servers.process import free_port, needed
from tests.servers.server import Server

_MORE = object()


def talk(port: int, *commands: Sequence[str | int | bytes]) -> list[Any]:
    """Commands and their answers, over one connection; error replies are raised."""
    reader = hiredis.Reader(notEnoughData=_MORE)
    answers: list[Any] = []
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        for command in commands:
            sock.sendall(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]
            while (answer := reader.gets()) is _MORE:
                data = sock.recv(65536)
                if not data:
                    raise ConnectionResetError
                reader.feed(data)
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
    return answers


def redis_program() -> str:
    """The program of the machine's Redis, or of the server that was chosen."""
    root = chosen.root("redis")
    if root is not None:
        return root.program(chosen.package("redis"))
    return needed("redis-server", "redis-server")


class RedisServer(Server):
    """Listens on a free port and a Unix socket, with TLS too if given certificates.

    ``config``: lines of its configuration file, e.g. ``{"maxmemory": "3mb"}``;
    ``users``: ACL rules, e.g. ``"bob on >secret ~* &* +@all"``. Answers when the
    constructor returns.
    """

    program = "redis-server"

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        certificates: Certificates | None = None,
    ) -> None:
        super().__init__(folder)
        self._config = dict(config or {})
        self._users = users
        self.certificates: Certificates | None = certificates
        # Socket paths are short: at most 107 bytes, less than many a temporary folder.
        self._sockets = tempfile.TemporaryDirectory(prefix="redis-")
        self.socket: Path = Path(self._sockets.name) / "s"
        self.port: int = 0
        self.tls_port: int = 0
        self.begin()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def tls_url(self) -> str:
        """With our own certificate, if it wants to see one."""
        files = self.certificates
        assert files is not None
        return (
            f"rediss://localhost:{self.tls_port}/0?ca_file={files.authority}"
            f"&cert_file={files.certificate}&key_file={files.key}"
        )

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    def ask(self, *args: str | int | bytes) -> Any:  # noqa: ANN401 - any answer
        """One command over a connection of its own; error replies are raised."""
        return self.ask_all(args)[0]

    def ask_all(self, *commands: Sequence[str | int | bytes]) -> list[Any]:
        """Several, over one connection."""
        return talk(self.port, *commands)

    @property
    def role(self) -> str:
        """``master`` or ``slave``; nothing if it hung up on whoever asked.

        A Sentinel that makes it the other one sends all its clients away.
        """
        try:
            role_name: bytes = self.ask("ROLE")[0]
        except ConnectionError:
            return ""
        return role_name.decode()

    def close(self) -> None:
        """Gone, with its socket."""
        super().close()
        self._sockets.cleanup()

    def choose_ports(self) -> None:
        self.port = free_port()
        self.tls_port = free_port() if self.certificates else 0

    def command(self) -> tuple[str | Path, ...]:
        file = self.folder / "redis.conf"
        file.write_text("".join(f"{line}\n" for line in self._lines()))
        return redis_program(), file

    def answers(self) -> bool:
        try:  # where nobody else can be, once it has its ports
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(1)
                sock.connect(str(self.socket))
                sock.sendall(b"PING\r\n")
                return sock.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _lines(self) -> list[str]:
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "logfile": str(self.folder / "log"),
            "save": '""',
            "appendonly": "no",
            "daemonize": "no",
            "databases": "16",
        }
        if self.certificates is not None:
            lines |= self.certificates.for_redis(self.tls_port)
            lines["tls-auth-clients"] = "optional"
        lines |= self._config
        return [
            *(f"{name} {value}" for name, value in lines.items()),
            *(f"user {rule}" for rule in self._users),
        ]
