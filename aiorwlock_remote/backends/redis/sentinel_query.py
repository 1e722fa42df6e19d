"""One Sentinel, asked over one socket that does not block."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator, Sequence
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import hiredis

from aiorwlock_remote.backends.redis.connection.calls import pack
from aiorwlock_remote.backends.redis.connection.sockets import closing_if_failed
from aiorwlock_remote.backends.redis.dns import Target
from aiorwlock_remote.backends.redis.errors import not_redis, of_reply
from aiorwlock_remote.backends.redis.hosts import Server, shown
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)

CHUNK = 65536

Found = tuple[int, Server]
"""The latest failover that a Sentinel knows of, and the primary since."""

UNTOLD = -1
"""In place of the latest failover, if a Sentinel does not tell."""

Login = tuple[str, str] | None

_MORE = object()
_Steps = Generator[int, None, Found]


class SentinelQuery:
    """Asks for the primary ``name``: after each ``event`` of its socket, ``go_on``."""

    def __init__(
        self,
        server: Server,
        target: Target,
        name: str,
        login: Login,
        tls: ssl.SSLContext | None,
        *,
        min_others: int = 0,
    ) -> None:
        """Begins to connect to one address of the Sentinel.

        Raises:
            OSError: this host has no such addresses.
        """
        self.server: Server = server
        self.where: str = shown(server)
        self._min_others = min_others
        self._host = server[0]
        self._name = name
        self._login = login
        self._tls = tls
        family, address = target
        with closing_if_failed(socket.socket(family, socket.SOCK_STREAM)) as sock:
            sock.setblocking(False)  # noqa: FBT003 - positional only
            sock.connect_ex(address)  # what becomes of it is seen when it is ready
        self._socket: socket.socket = sock
        self._steps: _Steps = self._ask()
        self.event: int = next(self._steps)

    def fileno(self) -> int:
        """What a selector looks at; it stays the same."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()

    def go_on(self) -> Found | None:
        """After the ``event`` came: what it told; None: not yet.

        Raises:
            OSError, EOFError: it cannot be reached.
            BackendError: it does not tell.
            ConfigurationError: it knows of no such primary.
        """
        try:
            self.event = next(self._steps)
        except StopIteration as over:
            found: Found = over.value
            return found
        return None

    def _ask(self) -> _Steps:
        yield EVENT_WRITE
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if self._tls is not None:
            yield from self._secured(self._tls)
        questions: list[tuple[str, ...]] = [
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name),
            ("SENTINEL", "MASTER", self._name),
        ]
        if self._login is not None:
            questions.insert(0, ("AUTH", *self._login))
        # Less than any socket's buffer: sent whole.
        self._socket.sendall(b"".join(map(pack, questions)))
        *login, primary, known = yield from self._answers(len(questions))
        return self._read([*login, primary], known)

    def _secured(self, tls: ssl.SSLContext) -> Generator[int, None, None]:
        sock = tls.wrap_socket(
            self._socket, server_hostname=self._host, do_handshake_on_connect=False
        )
        self._socket = sock
        while True:
            try:
                return sock.do_handshake()
            except ssl.SSLWantReadError:
                yield EVENT_READ
            except ssl.SSLWantWriteError:
                yield EVENT_WRITE

    def _answers(self, count: int) -> Generator[int, None, list[Any]]:
        reader = hiredis.Reader(notEnoughData=_MORE)
        answers: list[Any] = []
        while len(answers) < count:
            try:
                data = self._socket.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield EVENT_READ
                continue
            if not data:
                raise EOFError
            try:
                reader.feed(data)
                while (answer := reader.gets()) is not _MORE:
                    answers.append(answer)
            except hiredis.ProtocolError as exc:
                raise not_redis(self.where) from exc
        return answers[:count]

    def _read(self, said: Sequence[Any], known: Any) -> Found:  # noqa: ANN401 - as it came
        for answer in said:
            if isinstance(answer, hiredis.ReplyError):
                raise self._refusal(str(answer))
        primary = said[-1]
        if primary is None:
            raise ConfigurationError(
                what=f"{self.where}: this Sentinel knows no primary {self._name!r}",
                hint="redis+sentinel://host1,host2/name",
            )
        try:
            host, port = primary
            epoch, others = _told(known)
            found = epoch, (host.decode(), int(port))
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise not_redis(self.where) from exc
        if not 0 < found[1][1] < 65536:
            raise not_redis(self.where)
        if others < self._min_others:
            raise BackendUnavailable(
                what=f"{self.where}: this Sentinel knows {others} others",
                nothing_done=True,
            )
        return found

    def _refusal(self, text: str) -> BackendError:
        if self._login is not None and self._login[1]:
            # Whatever stands between us may quote what it was sent.
            text = text.replace(self._login[1], "…")
        error = of_reply(text, f"Sentinel {self.where}")
        if isinstance(error, Unsupported):
            if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
                error.hint = "see sentinel_username=… and sentinel_password=…"
            elif "unknown command" in text:
                error.hint = "it is no Sentinel; redis:// is for the server itself"
        return error if isinstance(error, BackendError) else not_redis(self.where)


def _told(known: Any) -> tuple[int, int]:  # noqa: ANN401 - as it came
    """The latest failover it knows of, and how many other Sentinels."""
    if isinstance(known, hiredis.ReplyError):
        return UNTOLD, 0
    fields = dict(zip(known[::2], known[1::2], strict=True))
    return int(fields[b"config-epoch"]), int(fields.get(b"num-other-sentinels", 0))
