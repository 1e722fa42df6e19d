"""Finds the primary that Sentinels watch, anew before each connection.

``PrimaryFinder`` remembers the last answer and announces a switch: after a planned
failover, the old primary stays up and writable for about ten seconds, so its
connections do not fail.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import hiredis

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote._util.tls import TlsOptions, TlsOptionsMixin
from aiorwlock_remote.backends.redis.addresses import (
    DnsResolver,
    Server,
    SocketAddress,
    close_on_error,
    invalid,
    servers_of,
    shown,
)
from aiorwlock_remote.backends.redis.connection.protocol import pack
from aiorwlock_remote.backends.redis.errors import (
    Failure,
    from_failure,
    from_reply,
    lasting,
    not_redis,
)
from aiorwlock_remote.backends.redis.hiredis_reader import MORE, new_reader, next_reply
from aiorwlock_remote.backends.redis.log import log_redis
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import Clock

PORT = 26379
READ_SIZE = 65_536
"""Maximum bytes of one read."""
LATE_ANSWERS_TIMEOUT = 0.1
"""Seconds for which answers of further Sentinels are awaited after a sufficient one."""
ATTEMPTS = 4
"""Attempts within ``connect_timeout`` to find the primary and shake hands with it."""
CONFIRMATION_SECONDS = 1.0
"""Seconds after a question to the Sentinels in which ``confirm`` asks no other."""
EPOCH_MEMORY_SECONDS = 10.0
"""Seconds after which an older epoch is believed if most Sentinels report it. They
inform each other every 2 s, so most of them must have been reset."""

PrimaryAnswer = tuple[int, Server]
"""Epoch of the latest failover that a Sentinel knows of, and the primary since then."""
UNKNOWN_EPOCH = -1
"""Epoch in the answer of a Sentinel that refuses the user ``SENTINEL MASTER``."""

_Steps = Generator[int, None, PrimaryAnswer]


@dataclass(frozen=True, slots=True)
class Sentinels(TlsOptionsMixin):
    """Value object: the Sentinels, how to log in, and their name for the primary."""

    name: str
    servers: tuple[Server, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    min_others: int = 0
    """Do not believe a Sentinel that knows fewer other Sentinels (an option of
    redis-py)."""

    @property
    def where(self) -> str:
        """Name of the primary and addresses of the Sentinels, for messages."""
        return f"{self.name} (Sentinel at {', '.join(map(shown, self.servers))})"

    @property
    def login(self) -> tuple[str, str] | None:
        """User name and password to log in with; None if neither is given."""
        if self.username or self.password:
            return self.username or "default", self.password or ""
        return None


def sentinels_of(address: Address, tls: TlsOptions | None) -> tuple[Sentinels, str]:
    """Parse ``redis+sentinel://h1,h2/name/db``: the Sentinels, and the database.

    Raises:
        ConfigurationError: Host or name of the primary is missing or invalid.
    """
    name, _, db = address.path.removeprefix("/").partition("/")
    if not name:
        hint = f"for example {address.scheme}://host1,host2:{PORT}/mymaster/0"
        raise invalid(address, "the URL must name the primary", hint)
    servers = servers_of(address, PORT)
    if not servers:
        hint = f"for example {address.scheme}://host1,host2:{PORT}/{name}"
        raise invalid(address, "the URL must name one Sentinel or more", hint)
    username = address.query.get("sentinel_username") or None
    password = address.query.get("sentinel_password") or None
    return Sentinels(name, servers, username, password, tls), db


@dataclass(frozen=True, slots=True)
class Primary:
    """Value object: the primary, and how often it had changed when it was found."""

    server: Server
    switches: int


class PrimaryFinder:
    """Asks the Sentinels for the primary, and announces when it is another server.

    Shared by all connections of a ``Locks``; any thread may use it. Invariants
    (test_primary_finder.py):

    * The counter ``switches`` rises before a switch is announced, so that a reply of a
      former primary can be recognised.
    * A Sentinel that was cut off with the old primary cannot lead connections back to
      it. Most Sentinels together can, for example after an operator reset them.
    * If two answers know of the same failover and name the primary differently, this is
      no switch unless most Sentinels use the new name.
    * ``replicas`` are servers that the present primary has listed: a former primary is
      none of them until it follows the present one (test_promotion.py).
    """

    def __init__(self, sentinels: Sentinels, clock: Clock) -> None:
        self.sentinels: Sentinels = sentinels
        self.switches: int = 0
        """How often the primary has become another server."""
        self.replicas: frozenset[Server] = frozenset()
        """Those that the primary has listed since it is the primary."""
        self._clock = clock
        self._resolver = DnsResolver()
        self._lock = Lock()
        self._known: PrimaryAnswer | None = None
        self._known_at = -math.inf
        self._asked_at = -math.inf
        self._silent = False
        self._left: tuple[Server, float] | None = None
        self._on_switch: list[Callable[[], object]] = []
        self._on_doubt: list[Callable[[], object]] = []

    @property
    def known(self) -> Server | None:
        return None if self._known is None else self._known[1]

    def on_switch(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` after each switch, in the thread that learned of it."""
        self._on_switch.append(callback)

    def on_doubt(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` for each ``doubt``, in its thread."""
        self._on_doubt.append(callback)

    def doubt(self) -> None:
        """Have the Sentinels asked: a replica is a primary, which they will name soon,
        if they have promoted it.
        """
        for callback in self._on_doubt:
            callback()

    def saw_replicas(self, replicas: Collection[Server], switches: int) -> None:
        """Note which replicas the primary of the time of ``switches`` has listed."""
        with self._lock:
            if switches == self.switches:
                self.replicas |= frozenset(replicas)

    def find(self, timeout: float) -> Primary:
        """Ask all Sentinels and return the primary, within ``timeout`` seconds.

        Raises:
            BackendUnavailable: No Sentinel answers or knows where the primary is now,
                or those that answer know less than was known before.
            ConfigurationError: The Sentinels know no primary of that name, or the
                certificates cannot be used.
            Unsupported: The Sentinels want (another) user or password.
        """
        known, asked_at = self._known, self._clock.now()
        self._asked_at = asked_at
        answers = ask_sentinels(
            *(self.sentinels, self._clock, timeout, self._resolver),
            enough=UNKNOWN_EPOCH if known is None else known[0],
        )
        # Two threads may ask at the same time; only one of them may count a switch.
        with self._lock:
            before = self.switches
            server = self._note(answers.values(), asked_at)
            primary = Primary(server, self.switches)
        if primary.switches > before:
            name = self.sentinels.name
            log_redis("primary_switched", primary=name, server=shown(server))
            for callback in self._on_switch:
                callback()
        return primary

    def was_left(self, server: Server | None) -> bool:
        """Return True if ``server`` was the primary until a recent switch.

        Recent: within ``EPOCH_MEMORY_SECONDS``, while outdated Sentinels may name it.
        """
        left = self._left
        if left is None or self._clock.now() > left[1] + EPOCH_MEMORY_SECONDS:
            return False
        return server == left[0]

    def assume(self, server: Server) -> None:
        """Take ``server`` for the primary if no Sentinel has answered yet.

        So that it counts as a switch when they name another one.
        """
        with self._lock:
            if self._known is None:
                self._known = UNKNOWN_EPOCH, server

    def confirm(self, timeout: float) -> None:
        """Ask for the primary, unless asked less than ``CONFIRMATION_SECONDS`` ago.

        Takes ``timeout`` seconds at most. If no Sentinel answers, the last known
        primary remains, and nothing is raised.
        """
        if self._clock.now() - self._asked_at < CONFIRMATION_SECONDS:
            return
        try:
            self.find(timeout)
        except (BackendError, ConfigurationError) as exc:
            if not self._silent:  # logged once an outage
                name = self.sentinels.name
                log_redis("sentinels_away", primary=name, error=str(exc))
            self._silent = True
        else:
            self._silent = False

    def _note(self, answers: Collection[PrimaryAnswer], asked_at: float) -> Server:
        # The one that knows of the latest failover is believed. Whether the server is a
        # primary at all, its own HELLO shows (`Handshake`).
        latest = max(epoch for epoch, _ in answers)
        named = [server for epoch, server in answers if epoch == latest]
        server = max(named, key=lambda one: (named.count(one), one))
        most = named.count(server) > len(self.sentinels.servers) // 2
        if self._known is None:
            self._known, self._known_at = (latest, server), asked_at
            return server
        epoch, before = self._known
        # An answer with an older epoch comes from Sentinels that were cut off with the
        # old primary, and would lead back there. Unless most of them give it for long:
        # an operator has reset them (test_most_sentinels_may_be_reset).
        outdated = asked_at > self._known_at + EPOCH_MEMORY_SECONDS
        if latest < epoch and not (most and outdated):
            raise BackendUnavailable(
                what=f"{self.sentinels.where}: the Sentinels that answer know of no"
                f" failover to {shown(before)}",
                hint="others do, which do not answer now",
                nothing_done=True,
            )
        self._known_at = max(self._known_at, asked_at)
        if latest != epoch or most:
            self._known = latest, server
            if server != before:
                self.switches += 1
                self.replicas = frozenset()
                self._left = before, asked_at
        return server


def ask_sentinels(
    sentinels: Sentinels,
    clock: Clock,
    timeout: float,
    resolver: DnsResolver,
    enough: int = UNKNOWN_EPOCH,
) -> dict[Server, PrimaryAnswer]:
    """Ask all Sentinels at once; return their answers by the Sentinel's address.

    Waits for ``timeout`` seconds at most; a Sentinel whose host name is not resolved in
    half of that is not asked. Once an answer has the epoch ``enough`` or a later one,
    the other Sentinels have ``LATE_ANSWERS_TIMEOUT`` seconds left.

    Raises:
        BackendUnavailable: No Sentinel answers, or none knows where the primary is now.
        ConfigurationError: The Sentinels know no primary of that name, or the
            certificates cannot be used.
        Unsupported: The Sentinels want (another) user or password.
    """
    # All at once: one that is down or silent costs no time
    # (test_one_that_is_down_and_one_that_is_silent_cost_no_time). By blocking sockets:
    # the keeper's thread asks by itself, a loop lets a thread do it.
    context = sentinels.tls_context()  # reads files, which costs none of the time
    deadline = clock.now() + timeout
    resolved_by = clock.now() + timeout / 2
    answers: dict[Server, PrimaryAnswer] = {}
    failures: list[Failure] = []
    queries = _queries(sentinels, clock, resolved_by, resolver, context, failures)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for query in queries:
            stack.callback(query.close)
            selector.register(query.fileno(), query.event, query)
        while selector.get_map() and (left := deadline - clock.now()) > 0:
            for key, _ in selector.select(left):
                query = key.data
                try:
                    found = query.proceed()
                except (OSError, EOFError) as exc:
                    failures.append(from_failure(exc, query.where))
                except (BackendError, ConfigurationError) as exc:
                    failures.append(exc)
                else:
                    if found is None:
                        selector.modify(key.fd, query.event, query)
                        continue
                    server = query.server
                    # A Sentinel with several addresses answers at each of them.
                    answers[server] = max(found, answers.get(server, found))
                    if found[0] >= enough:
                        deadline = min(deadline, clock.now() + LATE_ANSWERS_TIMEOUT)
                selector.unregister(key.fd)
    if answers:
        return answers
    if (failure := lasting(failures)) is not None:
        raise failure
    # Sorted, because `OutageLog` logs each text once: the same errors in another order
    # would be another text.
    said = sorted({str(failure) for failure in failures} or {"no answer in time"})
    raise BackendUnavailable(
        what=f"no Sentinel tells where {sentinels.name!r} is: {'; '.join(said)}",
        nothing_done=True,
    )


def _queries(
    sentinels: Sentinels,
    clock: Clock,
    deadline: float,
    resolver: DnsResolver,
    context: ssl.SSLContext | None,
    failures: list[Failure],
) -> Iterator[SentinelQuery]:
    resolver.start(sentinels.servers)
    for server in sentinels.servers:
        addresses: list[SocketAddress] = []
        try:
            addresses = resolver.addresses(server, deadline - clock.now())
        except (OSError, UnicodeError) as exc:  # Unicode: no such host name
            failures.append(from_failure(exc, shown(server)))
        for address in addresses:
            try:
                yield SentinelQuery(sentinels, server, address, context)
            except OSError as exc:  # a host without IPv6 cannot open such a socket
                failures.append(from_failure(exc, shown(server)))


class SentinelQuery:
    """Asks one Sentinel for the primary, over one non-blocking socket.

    Each time the socket is ready for ``event`` (a constant of ``selectors``), call
    ``proceed``, until it returns the answer.
    """

    def __init__(
        self,
        sentinels: Sentinels,
        server: Server,
        target: SocketAddress,
        tls: ssl.SSLContext | None,
    ) -> None:
        """Start to connect to ``target``, one address of the Sentinel ``server``.

        ``sentinels``: the primary to ask for, and the login. ``tls``: None for plain
        TCP.

        Raises:
            OSError: This host cannot open a socket of that family.
        """
        self.server: Server = server
        self.where: str = shown(server)
        self._min_others = sentinels.min_others
        self._name, self._login = sentinels.name, sentinels.login
        self._tls = tls
        family, address = target
        with close_on_error(socket.socket(family, socket.SOCK_STREAM)) as sock:
            sock.setblocking(False)  # noqa: FBT003 - positional only
            sock.connect_ex(address)  # `_ask` looks at the outcome when there is one
        self._socket: socket.socket = sock
        self._steps: _Steps = self._ask()
        self.event: int = next(self._steps)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def proceed(self) -> PrimaryAnswer | None:
        """Continue after ``event`` occurred; return the answer, None if not complete.

        Raises:
            OSError, EOFError: The Sentinel cannot be reached.
            BackendError: The Sentinel refuses to answer.
            ConfigurationError: The Sentinel knows no primary of that name.
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
        # Shorter than any socket's buffer, so it is sent whole.
        self._socket.sendall(b"".join(map(pack, questions)))
        *login, primary, fields = yield from self._answers(len(questions))
        return self._read([*login, primary], fields)

    def _secured(self, tls: ssl.SSLContext) -> Generator[int, None, None]:
        sock = tls.wrap_socket(
            self._socket, server_hostname=self.server[0], do_handshake_on_connect=False
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
        reader = new_reader()
        answers: list[Any] = []
        while len(answers) < count:
            try:
                data = self._socket.recv(READ_SIZE)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield EVENT_READ
                continue
            if not data:
                raise EOFError
            try:
                reader.feed(data)
                while (answer := next_reply(reader)) is not MORE:
                    answers.append(answer)
            except hiredis.ProtocolError as exc:
                raise not_redis(self.where) from exc
        return answers[:count]

    def _read(self, answers: Sequence[Any], fields: Any) -> PrimaryAnswer:  # noqa: ANN401 - not decoded
        for answer in answers:
            if isinstance(answer, hiredis.ReplyError):
                raise self._refusal(str(answer))
        primary = answers[-1]
        if primary is None:
            raise ConfigurationError(
                what=f"{self.where}: this Sentinel knows no primary {self._name!r}",
                hint="redis+sentinel://host1,host2/name",
            )
        try:
            host, port = primary
            epoch, others = _epoch_and_others(fields)
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
            # A proxy may quote in its error what it was sent, the password included.
            text = text.replace(self._login[1], "…")
        error = from_reply(text, f"Sentinel {self.where}")
        if isinstance(error, Unsupported):
            if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
                error.hint = "see sentinel_username=… and sentinel_password=…"
            elif "unknown command" in text:
                error.hint = "it is no Sentinel; redis:// is for the server itself"
        return error if isinstance(error, BackendError) else not_redis(self.where)


def _epoch_and_others(fields: Any) -> tuple[int, int]:  # noqa: ANN401 - not decoded
    if isinstance(fields, hiredis.ReplyError):
        return UNKNOWN_EPOCH, 0
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    return int(found[b"config-epoch"]), int(found.get(b"num-other-sentinels", 0))
