"""Locks by token, as redis-py's are: to know the token of a grant is to own it.

A grant is neither renewed nor given back by this process: it ends with its ``timeout``,
or when its token is released. So both ``Lock`` classes keep nothing but tokens.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.keys import MUTEX_PREFIX
from aiorwlock_remote.core.commands import (
    Adopt,
    Claim,
    Granted,
    NotHeld,
    Released,
    Renew,
    Renewed,
)
from aiorwlock_remote.core.names import Resource, plain_key, resource_from_key
from aiorwlock_remote.core.text import check_str
from aiorwlock_remote.core.ticket import Mode, Policy, check_ticket, holder_of
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockTimeout,
)
from aiorwlock_remote.locks.client import Locks, session_of
from aiorwlock_remote.locks.connect import connect
from aiorwlock_remote.locks.info import Holder
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseTerms
from aiorwlock_remote.sync.background import background, enroll, keep
from aiorwlock_remote.sync.twins import close_locks, open_locks

log: logging.Logger = logging.getLogger("aiorwlock_remote.compat")

LIBRARIES = "redis", "valkey"
"""The libraries whose clients are taken; they have the same classes."""
CONNECTIONS = "Connection", "SSLConnection", "UnixDomainSocketConnection"
"""Classes of connections that each library has, blocking and for asyncio."""
SETTINGS = frozenset(
    {
        *("host", "port", "path", "db", "username", "password", "client_name"),
        *("credential_provider", "socket_timeout", "socket_connect_timeout"),
        *("socket_keepalive", "socket_keepalive_options"),
    }
)
"""Settings of a blocking connection that one for asyncio has, too, beside ``ssl_…``."""


class Obtained:
    """A token on its way to the caller: released if it never gets there.

    The caller may be interrupted or cancelled when the grant is already made. The token
    is then dropped with this object, and would be lost with its lock.
    """

    def __init__(self, token: str, release: Callable[[], Awaitable[object]]) -> None:
        self._token = token
        self._release = release
        self._taken = False

    def take(self) -> str:
        """Return the token; from now on it is the caller's."""
        self._taken = True
        return self._token

    def __del__(self) -> None:
        if not self._taken:
            background().spawn(self._release)


class ServerLocks:
    """The locks of the server of one client, in the background loop of this process.

    Only the client's settings are used: locks have a connection of their own. A forked
    child process opens one of its own.
    """

    def __init__(self, client: object) -> None:
        self._backend = RedisBackend(_asyncio_client(client))
        self._opening = asyncio.Lock()
        self._locks: Locks | None = None
        enroll(self)

    async def session(self) -> Session:
        """Return the open session; called in the background loop."""
        async with self._opening:
            if self._locks is None:
                self._locks = await open_locks(connect(self._backend))
            return session_of(self._locks)

    def forked(self) -> None:
        keep((self._locks, self._opening))
        self._locks, self._opening = None, asyncio.Lock()

    async def aclose(self) -> None:
        if self._locks is not None:
            await close_locks(self._locks)

    def __del__(self) -> None:
        locks = getattr(self, "_locks", None)
        if locks is not None:
            background().spawn(partial(close_locks, locks))


class TokenLock:
    """One lock of a server; all methods run in the background loop."""

    def __init__(self, client: object, name: object) -> None:
        """Raise ``ConfigurationError`` if the client or the name is not valid."""
        self.library: str = _library(client)
        self._resource = _resource(name)
        self._server = _server_of(client)

    async def acquire(
        self, lease: float | None, wait: float | None, token: str | None
    ) -> Obtained | None:
        """Wait for the lock; None if it was not obtained within ``wait`` seconds.

        Args:
            lease: seconds the grant lives; None: until it is released.
            wait: seconds; None: for ever.
            token: to be used in place of a random one.
        """
        session = await self._server.session()
        clock = session.client.clock
        until = None if wait is None else clock.now() + wait
        terms = LeaseTerms(lease, keep=False)
        while True:
            left = None if until is None else max(0.0, until - clock.now())
            request = AcquireRequest(
                self._resource, Mode.WRITE, Policy.FAIR, terms, timeout=left
            )
            try:
                granted = await session.acquirer.acquire(request)
            except LockTimeout:
                return None
            try:
                ticket = await self._confirm(session, granted, token)
            except BaseException:
                session.client.release_in_background(granted)
                raise
            if ticket is not None:
                return Obtained(ticket, partial(self.release, ticket))

    async def release(self, token: str) -> bool:
        """Return True if this token held the lock until now."""
        client = (await self._server.session()).client
        # Through the queue: its next waiters ask in the same request.
        queue = client.queues.queue(self._resource)
        reply = await client.answer(partial(queue.release, token))
        assert isinstance(reply, Released)
        return reply.held

    async def extend(self, token: str, seconds: float, *, add: bool) -> bool:
        """Let the grant live for so many seconds from now, even if it would have lived
        for longer; ``add``: for so many more. None left: it ends now, as a key does
        that expires in 0 s.

        Return False if the token does not hold the lock, or if ``add`` and the grant
        has no end.
        """
        if add:
            holder = await self._holder(token)
            if holder is None or holder.expires_in is None:
                return False
            seconds += holder.expires_in
        if seconds <= 0:
            return await self.release(token)
        client = (await self._server.session()).client
        # No process has a deadline of it: the caller alone relies on it.
        renew = Renew(((token, micros(seconds)),), exact=True)
        reply = await client.request(self._resource, renew)
        assert isinstance(reply, Renewed)
        return not isinstance(reply.outcomes[0], NotHeld)

    async def owned(self, token: str | None) -> bool:
        """Return whether the token holds the lock; None: any token, or program."""
        return await self._holder(token) is not None

    async def _holder(self, token: str | None) -> Holder | None:
        session = await self._server.session()
        look = partial(session.client.store.look, self._resource)
        for holder in session.shown(await session.client.answer(look)).holders:
            ended = holder.expires_in is not None and holder.expires_in <= 0
            if not ended and (token is None or holder.holder == holder_of(token)):
                return holder
        return None

    async def _confirm(
        self, session: Session, granted: Lease, token: str | None
    ) -> str | None:
        """Return under which ticket the grant lives; None if it has ended."""
        client, terms = session.client, granted.terms
        # What a message has granted ends in a moment, unless the store confirms it; and
        # no keeper will look whether it has (test_a_grant_by_message_is_confirmed).
        if granted.pushed and isinstance(
            await client.renew(granted, terms.lease), NotHeld
        ):
            return None
        if token is None:
            return granted.ticket
        claim = Claim(token, terms.lease_micros, client.requester())
        adopt = Adopt(granted.ticket, claim)
        reply = await client.ask(self._resource, adopt, claim)
        return token if isinstance(reply, Granted) else None


class TokenHolder:
    """Base of both ``Lock`` classes: what the constructor of redis-py's takes."""

    def __init__(
        self,
        redis: object,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Make a lock; no I/O. Only the settings of the client are used.

        Args:
            redis: a client of redis-py or valkey-py, blocking or for asyncio, of one
                server; for the primary of Sentinels, one for asyncio.
            name: the key of the lock. Locks of redis-py with this name exclude it.
            timeout: how long the lock lives, in seconds, unless ``extend`` or
                ``reacquire`` is called; None: until it is released.
            sleep: has no meaning here, as waiters are notified.
            blocking: whether ``acquire`` waits.
            blocking_timeout: how long ``acquire`` waits, in seconds; None: for ever.
            thread_local: whether a thread sees only the token that it acquired.
            raise_on_release_error: whether the end of ``with`` raises ``LockError`` if
                the lock is no longer owned; otherwise it is logged.

        Raises:
            ConfigurationError: the client or the name cannot be used.
        """
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local: bool = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        self._lock = TokenLock(redis, name)

    @property
    def _token(self) -> bytes | None:
        # Of another thread there is none, not even None.
        token: bytes | None = getattr(self.local, "token", None)
        return token

    def _wait(
        self, blocking: bool | None, blocking_timeout: float | None
    ) -> float | None:
        """Return for how many seconds ``acquire`` waits; None: for ever."""
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        chosen = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return None if chosen is None else max(0.0, chosen)

    def _owned_token(self, action: str, *, needs_timeout: bool = False) -> str:
        """Return the token of this thread, or raise redis-py's ``LockError``."""
        if self._token is None:
            raise self._error("LockError", f"Cannot {action} an unlocked lock")
        if needs_timeout and self.timeout is None:
            raise self._error("LockError", f"Cannot {action} a lock with no timeout")
        return token_text(self._token)

    def _error(self, kind: str, message: str) -> Exception:
        made = cast("Callable[..., Exception]", self._their(kind))
        return made(message, lock_name=self.name)

    def _not_owned(self, action: str) -> Exception:
        message = f"Cannot {action} a lock that's no longer owned"
        return self._error("LockNotOwnedError", message)

    def _not_obtained(self) -> Exception:
        message = "Unable to acquire lock within the time specified"
        return self._error("LockError", message)

    def _their(self, kind: str) -> type[Exception]:
        return their_class(self._lock.library, kind)

    @contextmanager
    def _release_errors(self) -> Generator[None, None, None]:
        """Log an error of ``release`` if the end of ``with`` is not to raise it."""
        try:
            yield
        except self._their("LockError"):
            if self.raise_on_release_error:
                raise
            log_event(log, "lock_no_longer_owned", lock=self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def token_text(token: str | bytes) -> str:
    """Return a token as text; ``ConfigurationError`` if it cannot be a ticket."""
    if isinstance(token, bytes):
        try:
            token = token.decode()
        except UnicodeDecodeError:
            raise ConfigurationError(what="the token is not UTF-8") from None
    return check_ticket(token)


def their_class(library: str, kind: str) -> type[Exception]:
    """Return the class of errors with this name of the client's library."""
    found: type[Exception] = getattr(import_module(f"{library}.exceptions"), kind)
    return found


@contextmanager
def their_errors(library: str) -> Generator[None, None, None]:
    """Raise failures of the server as errors of the client's library."""
    try:
        yield
    except (BackendUnavailable, AcquireUncertain) as exc:
        raise their_class(library, "ConnectionError")(str(exc)) from exc
    except BackendError as exc:
        raise their_class(library, "ResponseError")(str(exc)) from exc


_servers: weakref.WeakKeyDictionary[Any, ServerLocks] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _server_of(client: Any) -> ServerLocks:  # noqa: ANN401 - of either library
    pool = client.connection_pool
    with _making:
        found = _servers.get(pool)
        if found is None:
            _servers[pool] = found = ServerLocks(client)
        return found


def _resource(name: object) -> Resource:
    if isinstance(name, bytes | memoryview):
        try:
            name = bytes(cast("Any", name)).decode()
        except UnicodeDecodeError:
            raise ConfigurationError(what="the name of the lock is not UTF-8") from None
    key = plain_key(check_str("lock name", name))
    # The published record of a mutex: one lock with `locks.mutex(type, id)`.
    mutex = resource_from_key(key.id.removeprefix(MUTEX_PREFIX))
    of_mutex = key.id.startswith(MUTEX_PREFIX) and mutex.type and mutex.id
    return mutex if of_mutex else key


def _library(client: object) -> str:
    for parent in type(client).__mro__:
        package = parent.__module__.partition(".")[0]
        if package in LIBRARIES and hasattr(client, "connection_pool"):
            return package
    kind = type(client).__name__
    raise ConfigurationError(
        what=f"{kind} is no client of one server", hint="redis.Redis(…)"
    )


def _asyncio_client(client: Any) -> Any:  # noqa: ANN401 - of either library
    """Return a client for asyncio with the settings of ``client``, which may block.

    A copy if possible: else the client, and its pool, would live as long as its locks.
    """
    pool = client.connection_pool
    made, given = pool.connection_class, pool.connection_kwargs
    library, _, module = made.__module__.partition(".")
    if library not in LIBRARIES or made.__name__ not in CONNECTIONS:
        return client  # RedisBackend takes it, or says why not
    ours = import_module(f"{library}.asyncio")
    if module.startswith("asyncio."):
        kept = dict(given)
    else:
        made = getattr(import_module(f"{library}.asyncio.connection"), made.__name__)
        kept = {
            name: value
            for name, value in given.items()
            if name in SETTINGS or name.startswith("ssl_")
        }
    return ours.Redis(
        connection_pool=ours.ConnectionPool(connection_class=made, **kept)
    )
