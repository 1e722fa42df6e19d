"""Sentinel: where the primary is, asked anew before each connection.

All Sentinels are asked at once, by blocking sockets: the keeper's thread does it as it
is, a loop does it in a thread. The one that knows of the latest failover is believed
(the highest ``config-epoch``); the first answer is waited for, the others have
``LINGER`` seconds more. Whether the server named is a primary is not theirs to say:
``HELLO`` tells, see ``greeting``.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from aiorwlock_remote.backends.redis.errors import of_failure
from aiorwlock_remote.backends.redis.hosts import Server, servers_of, shown
from aiorwlock_remote.backends.redis.inquiry import Found, Inquiry, Login
from aiorwlock_remote.backends.redis.lookups import Lookups, Target
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.tls import Secured, Tls

PORT = 26379
LINGER = 0.1
ATTEMPTS = 4
"""In ``connect_timeout``, of finding the primary and being greeted by it."""


@dataclass(frozen=True, slots=True)
class Sentinels(Secured):
    """Whom to ask, and the name of the primary. Its ``repr`` shows no password."""

    name: str
    servers: tuple[Server, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

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


def sentinels_of(address: Address, tls: Tls | None) -> tuple[Sentinels, str]:
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


def find_primary(
    sentinels: Sentinels, clock: Clock, timeout: float, lookups: Lookups
) -> Server:
    """Ask all; host and port of the primary, after ``timeout`` seconds at the latest.

    Half of that is for their addresses: who has none by then is not asked.

    Raises:
        BackendUnavailable: no Sentinel answers, or none knows where it is now.
        ConfigurationError: they answer, and know no primary of that name, or the
            certificates cannot be used.
        Unsupported: they want (another) user or password.
    """
    context = sentinels.tls_context()
    deadline = clock.now() + timeout
    known = clock.now() + timeout / 2
    best: Found | None = None
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
                    inquiry = Inquiry(
                        server, address, sentinels.name, sentinels.login, context
                    )
                    stack.callback(inquiry.close)
                    selector.register(inquiry.fileno(), inquiry.event, inquiry)
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
                        selector.modify(key.fd, inquiry.event, inquiry)
                        continue
                    best = found if best is None else max(best, found)
                    deadline = min(deadline, clock.now() + LINGER)
                selector.unregister(key.fd)
    if best is not None:
        return best[1]
    raise _most_telling(sentinels, failures)


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
