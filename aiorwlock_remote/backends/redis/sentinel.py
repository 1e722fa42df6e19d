"""Sentinel: where the primary is, asked anew before each connection.

All Sentinels are asked at once, by blocking sockets: the keeper's thread does it as it
is, a loop does it in a thread. The one that knows of the latest failover is believed
(the highest ``config-epoch``); the first answer is waited for, the others have
``RETRY_INTERVAL`` seconds more. Whether the server named is a primary is not theirs to
say: ``HELLO`` tells, see ``greeting``.

``PrimaryFinder`` remembers what they said last, and notices when they name another
server: after a planned failover the old primary stays up and writable for about ten
seconds, so that no connection fails and nobody else would tell.
"""

from __future__ import annotations

import logging
import math
import selectors
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from aiorwlock_remote._util.tls import TlsOptions, TlsOptionsMixin
from aiorwlock_remote.backends.redis.dns import DnsResolver, Target
from aiorwlock_remote.backends.redis.errors import of_failure
from aiorwlock_remote.backends.redis.hosts import Server, servers_of, shown
from aiorwlock_remote.backends.redis.sentinel_query import (
    UNTOLD,
    Found,
    Login,
    SentinelQuery,
)
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

PORT = 26379
RETRY_INTERVAL = 0.1
ATTEMPTS = 4
"""In ``connect_timeout``, of finding the primary and being greeted by it."""
CONFIRMED = 1.0
"""Seconds for which an answer of the Sentinels counts before a batch of renewals."""
OUTDATED = 10.0
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
        self._known: Found | None = None
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
            enough=UNTOLD if known is None else known[0],
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

        Sentinels that are behind may name it; ``OUTDATED`` seconds later none does.
        """
        left = self._left
        if left is None or self._clock.now() > left[1] + OUTDATED:
            return False
        return server == left[0]

    def confirm(self, timeout: float) -> None:
        """Ask, unless that was done within ``CONFIRMED`` seconds.

        While no Sentinel answers, the primary is the one they named last.
        """
        if self._clock.now() - self._asked_at < CONFIRMED:
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

    def _note(self, answers: Collection[Found], asked_at: float) -> Server:
        latest = max(epoch for epoch, _ in answers)
        named = [server for epoch, server in answers if epoch == latest]
        server = max(named, key=lambda one: (named.count(one), one))
        most = named.count(server) > len(self.sentinels.servers) // 2
        if self._known is None:
            self._known, self._told_at = (latest, server), asked_at
            return server
        epoch, before = self._known
        if latest < epoch and not (most and asked_at > self._told_at + OUTDATED):
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
    enough: int = UNTOLD,
) -> dict[Server, Found]:
    """Ask all; what each Sentinel that answers says, ``timeout`` seconds at most.

    Half of that is for their addresses: who has none by then is not asked. Others are
    waited for ``RETRY_INTERVAL`` seconds once one knows of the failover ``enough``.

    Raises:
        BackendUnavailable: no Sentinel answers, or none knows where it is now.
        ConfigurationError: they answer, and know no primary of that name, or the
            certificates cannot be used.
        Unsupported: they want (another) user or password.
    """
    context = sentinels.tls_context()  # reads files, which is not counted
    deadline = clock.now() + timeout
    known = clock.now() + timeout / 2
    answers: dict[Server, Found] = {}
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
                    failures.append(of_failure(exc, inquiry.where))
                except (BackendError, ConfigurationError) as exc:
                    failures.append(exc)
                else:
                    if found is None:
                        selector.modify(key.fd, inquiry.event, inquiry)
                        continue
                    server = inquiry.server
                    answers[server] = max(found, answers.get(server, found))
                    if found[0] >= enough:
                        deadline = min(deadline, clock.now() + RETRY_INTERVAL)
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
        addresses: list[Target] = []
        try:
            addresses = lookups.addresses(server, deadline - clock.now())
        except (OSError, UnicodeError) as exc:  # Unicode: no such host name
            failures.append(of_failure(exc, shown(server)))
        for address in addresses:
            try:
                yield SentinelQuery(
                    *(server, address, sentinels.name, sentinels.login, context),
                    min_others=sentinels.min_others,
                )
            except OSError as exc:  # this host has no such addresses, perhaps
                failures.append(of_failure(exc, shown(server)))


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
