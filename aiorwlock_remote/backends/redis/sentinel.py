"""Sentinel: where the primary is, asked anew before each connection.

All Sentinels are asked at once, by blocking sockets: the keeper's thread does it as it
is, a loop does it in a thread. The one that knows of the latest failover is believed
(the highest ``config-epoch``); the first answer is waited for, the others have
``LATE_ANSWERS_TIMEOUT`` seconds more. Whether the server named is a primary is not to
say: ``HELLO`` tells, see ``greeting``.

``PrimaryFinder`` remembers what they said last, and notices when they name another
server: after a planned failover the old primary stays up and writable for about ten
seconds, so that no connection fails and nobody else would tell.

One Sentinel, asked over one socket that does not block.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import hiredis

from aiorwlock_remote._util.tls import TlsOptions, TlsOptionsMixin
from aiorwlock_remote.backends.redis.addresses import (
    DnsResolver,
    Server,
    SocketAddress,
    close_on_error,
    servers_of,
    shown,
)
from aiorwlock_remote.backends.redis.connection.calls import pack
from aiorwlock_remote.backends.redis.errors import from_failure, from_reply, not_redis
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

CHUNK = 65536

PrimaryAnswer = tuple[int, Server]
"""The latest failover that a Sentinel knows of, and the primary since."""

UNKNOWN_EPOCH = -1
"""In place of the latest failover, if a Sentinel does not tell."""

Login = tuple[str, str] | None

_MORE = object()
_Steps = Generator[int, None, PrimaryAnswer]


class SentinelQuery:
    """Asks for the primary ``name``: after each ``event`` of its socket, ``go_on``."""

    def __init__(
        self,
        server: Server,
        target: SocketAddress,
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
        with close_on_error(socket.socket(family, socket.SOCK_STREAM)) as sock:
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

    def go_on(self) -> PrimaryAnswer | None:
        """After the ``event`` came: what it told; None: not yet.

        Raises:
            OSError, EOFError: it cannot be reached.
            BackendError: it does not tell.
            ConfigurationError: it knows of no such primary.
        """
        try:
            self.event = next(self._steps)
        except StopIteration as over:
            found: PrimaryAnswer = over.value
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

    def _read(self, said: Sequence[Any], known: Any) -> PrimaryAnswer:  # noqa: ANN401 - as it came
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
        error = from_reply(text, f"Sentinel {self.where}")
        if isinstance(error, Unsupported):
            if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
                error.hint = "see sentinel_username=… and sentinel_password=…"
            elif "unknown command" in text:
                error.hint = "it is no Sentinel; redis:// is for the server itself"
        return error if isinstance(error, BackendError) else not_redis(self.where)


def _told(known: Any) -> tuple[int, int]:  # noqa: ANN401 - as it came
    """The latest failover it knows of, and how many other Sentinels."""
    if isinstance(known, hiredis.ReplyError):
        return UNKNOWN_EPOCH, 0
    fields = dict(zip(known[::2], known[1::2], strict=True))
    return int(fields[b"config-epoch"]), int(fields.get(b"num-other-sentinels", 0))


PORT = 26379
LATE_ANSWERS_TIMEOUT = 0.1
ATTEMPTS = 4
"""In ``connect_timeout``, of finding the primary and being greeted by it."""
CONFIRMATION_SECONDS = 1.0
"""Seconds for which an answer of the Sentinels counts before a batch of renewals."""
EPOCH_MEMORY_SECONDS = 10.0
"""Seconds after which most Sentinels are believed though they know of no failover that
one of them once told of. They tell each other every 2 s, so they have been reset."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")


@dataclass(frozen=True, slots=True)
class Sentinels(TlsOptionsMixin):
    """Whom to ask, and the name of the primary. Its ``repr`` shows no password."""

    name: str
    servers: tuple[Server, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    min_others: int = 0
    """A Sentinel that knows fewer others is not believed (redis-py's own option)."""

    @property
    def where(self) -> str:
        """The primary, for messages, before it is known which server that is."""
        return f"{self.name} (Sentinel at {', '.join(map(shown, self.servers))})"

    @property
    def login(self) -> Login:
        """User and password, if there is either."""
        if self.username or self.password:
            return self.username or "default", self.password or ""
        return None


def sentinels_of(address: Address, tls: TlsOptions | None) -> tuple[Sentinels, str]:
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
    return Sentinels(name, servers, username, password, tls), db


@dataclass(frozen=True, slots=True)
class Primary:
    """The server to connect to, and how many ``switches`` there were before."""

    server: Server
    switches: int


class PrimaryFinder:
    """Which server the Sentinels name; shared by the connections of a ``Locks``.

    Any thread may use it. What it promises:

    * ``switches`` has risen before anybody is told of a switch, so that an answer can
      be seen to come from a former primary (``test_primary_finder.py``).
    * A Sentinel that is behind, because it was cut off with the old primary, sends
      nobody back there; most of them may, once they have been reset.
    * Two names of one server, in answers that know of the same failover, are no switch
      unless most Sentinels use the new one.
    """

    def __init__(self, sentinels: Sentinels, clock: Clock) -> None:
        self.sentinels: Sentinels = sentinels
        self.switches: int = 0
        """How often the primary has become another server."""
        self._clock = clock
        self._lookups = DnsResolver()
        self._lock = threading.Lock()
        self._known: PrimaryAnswer | None = None
        self._told_at = -math.inf
        self._asked_at = -math.inf
        self._silent = False
        self._left: tuple[Server, float] | None = None
        self._on_switch: list[Callable[[], object]] = []

    @property
    def known(self) -> Server | None:
        """The primary as far as it is known."""
        return None if self._known is None else self._known[1]

    def on_switch(self, tell: Callable[[], object]) -> None:
        """Call ``tell()``, in any thread, when the primary has become another one."""
        self._on_switch.append(tell)

    def find(self, timeout: float) -> Primary:
        """Ask all Sentinels; the primary, after ``timeout`` seconds at the latest.

        Raises:
            BackendUnavailable: no Sentinel answers, none knows where it is now, or
                those that answer know less than was known before.
            ConfigurationError: they answer, and know no primary of that name, or the
                certificates cannot be used.
            Unsupported: they want (another) user or password.
        """
        known, asked_at = self._known, self._clock.now()
        self._asked_at = asked_at
        answers = ask_sentinels(
            *(self.sentinels, self._clock, timeout, self._lookups),
            enough=UNKNOWN_EPOCH if known is None else known[0],
        )
        with self._lock:
            before = self.switches
            server = self._note(answers.values(), asked_at)
            primary = Primary(server, self.switches)
        if primary.switches > before:
            name = self.sentinels.name
            log_event(log, "primary_switched", primary=name, server=shown(server))
            for tell in self._on_switch:
                tell()
        return primary

    def was_left(self, server: Server | None) -> bool:
        """Whether this was the primary before a switch that is not long ago.

        Late Sentinels may name it; none does after ``EPOCH_MEMORY_SECONDS`` seconds.
        """
        left = self._left
        if left is None or self._clock.now() > left[1] + EPOCH_MEMORY_SECONDS:
            return False
        return server == left[0]

    def confirm(self, timeout: float) -> None:
        """Ask, unless that was done within ``CONFIRMATION_SECONDS`` seconds.

        While no Sentinel answers, the primary is the one they named last.
        """
        if self._clock.now() - self._asked_at < CONFIRMATION_SECONDS:
            return
        try:
            self.find(timeout)
        except (BackendError, ConfigurationError) as exc:
            if not self._silent:  # once an outage
                name = self.sentinels.name
                log_event(log, "sentinels_away", primary=name, error=str(exc))
            self._silent = True
        else:
            self._silent = False

    def _note(self, answers: Collection[PrimaryAnswer], asked_at: float) -> Server:
        latest = max(epoch for epoch, _ in answers)
        named = [server for epoch, server in answers if epoch == latest]
        server = max(named, key=lambda one: (named.count(one), one))
        most = named.count(server) > len(self.sentinels.servers) // 2
        if self._known is None:
            self._known, self._told_at = (latest, server), asked_at
            return server
        epoch, before = self._known
        if latest < epoch and not (
            most and asked_at > self._told_at + EPOCH_MEMORY_SECONDS
        ):
            raise BackendUnavailable(
                what=f"{self.sentinels.where}: the Sentinels that answer know of no"
                f" failover to {shown(before)}",
                hint="others do, which do not answer now",
                nothing_done=True,
            )
        self._told_at = max(self._told_at, asked_at)
        if latest != epoch or most:
            self._known = latest, server
            if server != before:
                self.switches += 1
                self._left = before, asked_at
        return server


def ask_sentinels(
    sentinels: Sentinels,
    clock: Clock,
    timeout: float,
    lookups: DnsResolver,
    enough: int = UNKNOWN_EPOCH,
) -> dict[Server, PrimaryAnswer]:
    """Ask all; what each Sentinel that answers says, ``timeout`` seconds at most.

    Half of that is for their addresses: who has none by then is not asked. Others are
    awaited for ``LATE_ANSWERS_TIMEOUT`` seconds once one knows the failover ``enough``.

    Raises:
        BackendUnavailable: no Sentinel answers, or none knows where it is now.
        ConfigurationError: they answer, and know no primary of that name, or the
            certificates cannot be used.
        Unsupported: they want (another) user or password.
    """
    context = sentinels.tls_context()  # reads files, which is not counted
    deadline = clock.now() + timeout
    known = clock.now() + timeout / 2
    answers: dict[Server, PrimaryAnswer] = {}
    failures: list[BackendError | ConfigurationError] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for inquiry in _begin(sentinels, clock, known, lookups, context, failures):
            stack.callback(inquiry.close)
            selector.register(inquiry.fileno(), inquiry.event, inquiry)
        while selector.get_map() and (left := deadline - clock.now()) > 0:
            for key, _ in selector.select(left):
                inquiry = key.data
                try:
                    found = inquiry.go_on()
                except (OSError, EOFError) as exc:
                    failures.append(from_failure(exc, inquiry.where))
                except (BackendError, ConfigurationError) as exc:
                    failures.append(exc)
                else:
                    if found is None:
                        selector.modify(key.fd, inquiry.event, inquiry)
                        continue
                    server = inquiry.server
                    answers[server] = max(found, answers.get(server, found))
                    if found[0] >= enough:
                        deadline = min(deadline, clock.now() + LATE_ANSWERS_TIMEOUT)
                selector.unregister(key.fd)
    if answers:
        return answers
    raise _most_telling(sentinels, failures)


def _begin(
    sentinels: Sentinels,
    clock: Clock,
    deadline: float,
    lookups: DnsResolver,
    context: ssl.SSLContext | None,
    failures: list[BackendError | ConfigurationError],
) -> Iterator[SentinelQuery]:
    """Begin to connect to every address of every Sentinel."""
    lookups.start(sentinels.servers)
    for server in sentinels.servers:
        addresses: list[SocketAddress] = []
        try:
            addresses = lookups.addresses(server, deadline - clock.now())
        except (OSError, UnicodeError) as exc:  # Unicode: no such host name
            failures.append(from_failure(exc, shown(server)))
        for address in addresses:
            try:
                yield SentinelQuery(
                    *(server, address, sentinels.name, sentinels.login, context),
                    min_others=sentinels.min_others,
                )
            except OSError as exc:  # this host has no such addresses, perhaps
                failures.append(from_failure(exc, shown(server)))


def _most_telling(
    sentinels: Sentinels, failures: Sequence[BackendError | ConfigurationError]
) -> BackendError | ConfigurationError:
    """A Sentinel that answers knows more than one that cannot be reached."""
    for kind in (Unsupported, ConfigurationError):
        for failure in failures:
            if isinstance(failure, kind):
                return failure
    # Sorted: the order they came in says nothing, and would be another message.
    said = sorted({str(failure) for failure in failures} or {"no answer in time"})
    return BackendUnavailable(
        what=f"no Sentinel tells where {sentinels.name!r} is: {'; '.join(said)}",
        nothing_done=True,
    )
