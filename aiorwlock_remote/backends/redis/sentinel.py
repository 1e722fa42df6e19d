"""Sentinel: where the primary is, asked anew before each connection.

All Sentinels are asked at once, by blocking sockets: the keeper's thread does it as it
is, a loop does it in a thread. The one that knows of the latest failover is believed
(the highest ``config-epoch``); the first answer is waited for, the others have
``LINGER`` seconds more. Whether the server named is a primary is not theirs to say:
``HELLO`` tells, see ``greeting``.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import hiredis

from aiorwlock_remote.backends.redis.connection.calls import pack
from aiorwlock_remote.backends.redis.errors import not_redis, of_failure, of_reply
from aiorwlock_remote.backends.redis.hosts import Server, servers_of, shown
from aiorwlock_remote.backends.redis.lookups import Lookups, Target
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import Clock

PORT = 26379
LINGER = 0.1
ATTEMPTS = 4
"""In ``connect_timeout``, of finding the primary and being greeted by it."""
CHUNK = 65536

_MORE = object()


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Whom to ask, and the name of the primary. Its ``repr`` shows no password."""

    name: str
    servers: tuple[Server, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The primary, for messages, before it is known which server that is."""
        return f"{self.name} (Sentinel at {', '.join(map(shown, self.servers))})"


def sentinels_of(address: Address) -> tuple[Sentinels, str]:
    """What ``redis+sentinel://h1,h2/name/db`` says, and the database.

    Raises:
        ConfigurationError: no host, no name, or one that cannot be used.
    """
    name, _, db = address.path.removeprefix("/").partition("/")
    if not name:
        raise ConfigurationError(
            what=f"{address.scheme}: the URL must name the primary",
            hint=f"for example {address.scheme}://host1,host2:{PORT}/mymaster/0",
        )
    servers = servers_of(address, PORT)
    if not servers:
        raise ConfigurationError(
            what=f"{address.scheme}: the URL must name one Sentinel or more",
            hint=f"for example {address.scheme}://host1,host2:{PORT}/{name}",
        )
    username = address.query.get("sentinel_username") or None
    password = address.query.get("sentinel_password") or None
    return Sentinels(name, servers, username, password), db


def find_primary(
    sentinels: Sentinels, clock: Clock, timeout: float, lookups: Lookups
) -> Server:
    """Ask all; host and port of the primary, after ``timeout`` seconds at the latest.

    Half of that is for their addresses: who has none by then is not asked.

    Raises:
        BackendUnavailable: no Sentinel answers, or none knows where it is now.
        ConfigurationError: they answer, and know no primary of that name.
        Unsupported: they want (another) user or password.
    """
    deadline = clock.now() + timeout
    known = clock.now() + timeout / 2
    best: tuple[int, Server] | None = None
    failures: list[BackendError | ConfigurationError] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        lookups.start(sentinels.servers)
        for server in sentinels.servers:
            addresses: list[Target] = []
            try:
                addresses = lookups.addresses(server, known - clock.now())
            except (OSError, UnicodeError) as exc:  # Unicode: no such host name
                failures.append(of_failure(exc, shown(server)))
            for address in addresses:
                try:
                    inquiry = _inquiry(sentinels, shown(server), address)
                    stack.callback(inquiry.sock.close)
                    selector.register(inquiry.sock, selectors.EVENT_WRITE, inquiry)
                except OSError as exc:  # this host has no such addresses, perhaps
                    failures.append(of_failure(exc, shown(server)))
        while selector.get_map() and (left := deadline - clock.now()) > 0:
            for key, _ in selector.select(left):
                inquiry = key.data
                try:
                    found = inquiry.go_on()
                except (OSError, EOFError) as exc:
                    failures.append(of_failure(exc, inquiry.where))
                except (BackendError, ConfigurationError) as exc:
                    failures.append(exc)
                else:
                    if found is None:
                        selector.modify(key.fileobj, selectors.EVENT_READ, inquiry)
                        continue
                    best = found if best is None else max(best, found)
                    deadline = min(deadline, clock.now() + LINGER)
                selector.unregister(key.fileobj)
    if best is not None:
        return best[1]
    raise _most_telling(sentinels, failures)


class _Inquiry:
    """One Sentinel asked, over one socket that does not block."""

    def __init__(self, sentinels: Sentinels, where: str, sock: socket.socket) -> None:
        self.sock = sock
        self.where = where
        self._name = sentinels.name
        self._password = sentinels.password
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._answers: list[Any] = []
        questions: list[tuple[str, ...]] = [
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name),
            ("SENTINEL", "MASTER", sentinels.name),
        ]
        if sentinels.username or sentinels.password:
            login = (sentinels.username or "default", sentinels.password or "")
            questions.insert(0, ("AUTH", *login))
        self._expected = len(questions)
        self._unsent = b"".join(map(pack, questions))

    def go_on(self) -> tuple[int, Server] | None:
        """After the socket is ready: the epoch and the primary; None: not yet."""
        if self._unsent:
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            # Less than any socket's buffer: sent whole.
            self.sock.sendall(self._unsent)
            self._unsent = b""
            return None
        data = self.sock.recv(CHUNK)
        if not data:
            raise EOFError
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not _MORE:
                self._answers.append(answer)
        except hiredis.ProtocolError as exc:
            raise not_redis(self.where) from exc
        if len(self._answers) < self._expected:
            return None
        return self._read()

    def _read(self) -> tuple[int, Server]:
        *login, primary, known = self._answers
        for answer in (*login, primary):
            if isinstance(answer, hiredis.ReplyError):
                raise self._refusal(str(answer))
        if primary is None:
            raise ConfigurationError(
                what=f"{self.where}: this Sentinel knows no primary {self._name!r}",
                hint="redis+sentinel://host1,host2/name",
            )
        try:
            host, port = primary
            found = _epoch(known), (host.decode(), int(port))
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise not_redis(self.where) from exc
        if not 0 < found[1][1] < 65536:
            raise not_redis(self.where)
        return found

    def _refusal(self, text: str) -> BackendError:
        if self._password:  # whatever stands between us may quote what it was sent
            text = text.replace(self._password, "…")
        error = of_reply(text, f"Sentinel {self.where}")
        if isinstance(error, Unsupported):
            if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
                error.hint = "see sentinel_username=… and sentinel_password=…"
            elif "unknown command" in text:
                error.hint = "it is no Sentinel; redis:// is for the server itself"
        return error if isinstance(error, BackendError) else not_redis(self.where)


def _inquiry(sentinels: Sentinels, where: str, target: Target) -> _Inquiry:
    family, address = target
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)  # noqa: FBT003 - positional only
    sock.connect_ex(address)  # what becomes of it is seen when it is ready
    return _Inquiry(sentinels, where, sock)


def _epoch(known: Any) -> int:  # noqa: ANN401 - as it came
    """The latest failover it knows of; 0 if it would not tell."""
    if isinstance(known, hiredis.ReplyError):
        return 0
    return int(dict(zip(known[::2], known[1::2], strict=True))[b"config-epoch"])


def _most_telling(
    sentinels: Sentinels, failures: Sequence[BackendError | ConfigurationError]
) -> BackendError | ConfigurationError:
    """A Sentinel that answers knows more than one that cannot be reached."""
    for kind in (Unsupported, ConfigurationError):
        for failure in failures:
            if isinstance(failure, kind):
                return failure
    said = {str(failure): None for failure in failures} or {"no answer in time": None}
    return BackendUnavailable(
        what=f"no Sentinel tells where {sentinels.name!r} is: {'; '.join(said)}",
        nothing_done=True,
    )
