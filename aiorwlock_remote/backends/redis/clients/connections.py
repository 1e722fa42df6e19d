"""Connections as a client of redis-py or valkey-py makes them, but of our own.

Why not the client's pool, or its commands: a pool gives every command another
connection, so a release may overtake the acquire it follows; a cancelled command makes
the client drop its connection, and a failed one makes it send EVALSHA again, by default
three times, though the first may have been carried out. So we ask the client's pool for
nothing but its connection class and its settings. A connection made of these connects
as the user wanted it (address, TLS, Sentinel, credentials, subclasses), without
retries; then our link takes over its two streams and speaks RESP3 on them, whatever
protocol and decoding the client has.

Renewals where a user's client opens the connection, which only asyncio can do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack, cast

import anyio

from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.asyncio_transport import (
    ClientObject,
    StreamTransport,
    disconnect,
    take_over,
)
from aiorwlock_remote.backends.redis.connection.calls import Call, Request, as_is
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Connector, Dial
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    FallbackChannel,
    MainLoopChannel,
)
from aiorwlock_remote.backends.redis.connections import (
    ConnectionCallbacks,
    Endpoint,
    RenewalChannel,
    open_connection,
)
from aiorwlock_remote.backends.redis.errors import from_client, from_failure
from aiorwlock_remote.backends.redis.options import CLIENT_NAME, PORT, Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.sentinel import PORT as SENTINEL_PORT
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import EventLoop

LISTENING_TURNS = 3
"""Turns of a loop in which it hears what has come while it stood still."""

T = TypeVar("T")


class ThreadLoopChannel:
    """A connection on an event loop that runs in the keeper's thread, when needed.

    Opens at the first use, and again at the next use after anything went wrong: also
    when the server was silent for ``command_timeout``, as there may be time left to
    renew elsewhere.
    """

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        dial: Dial,
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Unconnected. ``finder``: the store's, if Sentinels watch the server."""
        self._options = options
        self._connector = Connector(options, host, ALL, self, dial, finder)
        self._runner: asyncio.Runner | None = None
        self._talk: RespProtocol | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit: asyncio.Timeout | None = None
        self._given_up = False

    def open(self, timeout: float) -> None:
        """As ``BlockingConnection``."""
        self._run(self._ready(timeout))

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``."""
        return self._run(self._exchange(batch, timeout))

    def give_up(self) -> None:
        """As ``Batches``: the time is up."""
        self._given_up = True
        self.abort()

    def abort(self) -> None:
        """As ``Batches``."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._hurry)

    def close(self) -> None:
        """Close the connection and the loop."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.run(self._drop())
            runner.close()

    # What a conversation tells: there is one batch at a time, and no messages.

    def heard(self, channel: bytes, payload: bytes) -> None:
        """Nobody subscribed."""

    def unheard(self, channel: bytes) -> None:
        """Likewise."""

    def refused(self, call: Call[Any], text: str) -> bool:  # noqa: ARG002 - not ours
        """An error is an answer."""
        return False

    def holding(self) -> None:
        """Nothing more comes before the batch is answered."""

    def ready(self) -> None:
        """Likewise."""

    def crowded(self) -> None:
        """Likewise."""

    def ended(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        """The batch fails, the next one opens a new connection."""
        for call in unsent:
            call.failed(error)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._loop = self._runner.get_loop()
        return self._runner.run(work)

    async def _ready(self, timeout: float) -> RespProtocol:
        """A connection, which the server did not close while the loop stood still."""
        for _ in range(LISTENING_TURNS):
            await asyncio.sleep(0)
        talk = self._talk
        if talk is not None and (_hung_up(talk) or not talk.alive):
            await self._drop()
            talk = None
        if talk is None:
            async with self._in_time(timeout):
                self._talk = talk = await self._connector.connect(())
        return talk

    async def _exchange(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        talk = await self._ready(timeout)
        patience = min(self._options.command_timeout, deadline - loop.time())
        try:
            async with self._in_time(patience):
                talk.send_all(calls)
                for call in calls:
                    with suppress(BackendError, IllegalCommand):
                        await call
        except BaseException:
            await self._drop()
            raise
        error = calls[-1].error
        if error is not None and not talk.alive:
            raise error
        return [call.error or call.result() for call in calls]

    def _hurry(self) -> None:
        if self._limit is not None:
            with suppress(RuntimeError):  # it is over
                self._limit.reschedule(0)

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncIterator[None]:
        seconds = 0 if self._given_up else seconds
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        except TimeoutError as exc:
            raise from_failure(exc, self._options.where) from exc

    async def _drop(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.wire.aclose()


def _hung_up(talk: RespProtocol) -> bool:
    return isinstance(talk.wire, StreamTransport) and talk.wire.hung_up


Kwargs = dict[str, Any]
DialStream = Callable[[Options, RespProtocol, EventLoop], Awaitable[StreamTransport]]

_GREETING = ("db", "client_name")
"""Said by our own greeting."""
_REPEATING = ("retry", "retry_on_error", "retry_on_timeout", "health_check_interval")
_NOT_OURS = (
    # Moving a connection in maintenance is the pool's business, and RESP3's.
    *("maint_notifications_config", "maint_notifications_pool_handler"),
    *("orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
    *("himport_registry", "event_dispatcher", "decode_responses"),
)
_PLAIN = ("Connection", "SSLConnection", "UnixDomainSocketConnection")
_OF_SENTINEL = ("SentinelManagedConnection", "SentinelManagedSSLConnection")
_OF_THE_LOOP = ("credential_provider", "redis_connect_func", "valkey_connect_func")
"""Code of the user's, which may belong to the user's event loop."""


def client_connections(
    pool: ClientObject, connect_timeout: float
) -> tuple[Options, ClientConnectionFactory]:
    """What the pool of a client says.

    Raises:
        ConfigurationError: its database is not a number.
    """
    given: Kwargs = pool.connection_kwargs
    silence = given.get("socket_timeout")
    options = Options(
        host=str(given.get("host") or "localhost"),
        port=int(given.get("port") or PORT),
        path=str(given.get("path") or ""),
        db=_db(given),
        client_name=str(given.get("client_name") or CLIENT_NAME),
        connect_timeout=connect_timeout,
        command_timeout=float(silence) if silence else connect_timeout,
    )
    if hasattr(pool, "sentinel_manager"):
        options = replace(
            options,
            name=f"{pool.service_name} of Sentinel",
            client_sentinels=_sentinels_of(pool),
        )
    return options, ClientConnectionFactory(pool)


class ClientConnectionFactory:
    """Connections made by the class and the settings of a pool."""

    def __init__(self, pool: ClientObject) -> None:
        """Nothing is opened, and nothing of the pool is changed."""
        self._pool = pool
        self.off_loop: bool = _can_be_cloned(pool)

    async def open(
        self,
        options: Options,
        host: EventLoop,
        own: bytes,
        finder: PrimaryFinder | None,
        **ears: Unpack[ConnectionCallbacks],
    ) -> RedisConnection:
        """As ``Lines``."""
        dial = self._checking(self.dial, finder)
        return await open_connection(
            *(options, host, ALL), channels=(own,), dial=dial, finder=finder, **ears
        )

    @staticmethod
    def _checking(dial: DialStream, finder: PrimaryFinder | None) -> DialStream:
        """Refuse the former primary, where a Sentinel that is behind sends the client.

        The client believes the first one that answers; ``finder`` has asked them all.
        """
        if finder is None:
            return dial

        async def checked(
            options: Options, talk: RespProtocol, host: EventLoop
        ) -> StreamTransport:
            wire = await dial(options, talk, host)
            if finder.was_left(wire.server):
                wire.abort()
                await wire.aclose()
                raise BackendUnavailable(
                    what=f"{options.where}: sent to the primary before the failover",
                    nothing_done=True,
                )
            return wire

        return checked

    async def dial(
        self, options: Options, talk: RespProtocol, host: EventLoop
    ) -> StreamTransport:
        """On the user's loop, where Sentinel is asked by the user's own clients."""
        del host
        pool = self._pool
        return await _connected(options, talk, pool.connection_class, _settings(pool))

    def batches(
        self,
        options: Options,
        host: EventLoop,
        endpoint: Endpoint,
        finder: PrimaryFinder | None,
    ) -> RenewalChannel:
        """A loop of its own wherever the settings can be used on another one."""
        on_the_loop = MainLoopChannel(options.where, host, endpoint)
        if not self.off_loop:
            return on_the_loop
        dial = self._checking(self._dial_elsewhere, finder)
        own = ThreadLoopChannel(options, host, dial, finder)
        return FallbackChannel(own, on_the_loop, host)

    async def _dial_elsewhere(
        self, options: Options, talk: RespProtocol, host: EventLoop
    ) -> StreamTransport:
        """The same on any other loop: nothing that has been used is used again."""
        del host
        pool, settings = self._pool, _settings(self._pool)
        made = pool.connection_class
        if made.__name__ in _OF_SENTINEL:
            made = next(c for c in made.__mro__ if c.__name__ in _PLAIN)
            settings.pop("connection_pool", None)
            try:
                settings["host"], settings["port"] = await _primary_of(pool)
            except Exception as exc:
                raise from_client(exc, options.where) from exc
        return await _connected(options, talk, made, settings)


async def _connected(
    options: Options,
    talk: RespProtocol,
    made: ClientObject,
    settings: Kwargs,
) -> StreamTransport:
    try:
        connection = made(**settings)
    except Exception as exc:
        raise ConfigurationError(
            what=f"{options.where}: the client's settings cannot be used: {exc}"
        ) from exc
    try:
        await connection.connect()
        return take_over(talk, connection, options.where)
    except BaseException as exc:
        with anyio.CancelScope(shield=True):
            await disconnect(connection)
        if isinstance(exc, Exception):
            raise from_client(exc, options.where) from exc
        raise


def _settings(pool: ClientObject) -> Kwargs:
    left_out = {*_GREETING, *_REPEATING, *_NOT_OURS}
    given = cast("Kwargs", pool.connection_kwargs)
    kept = {name: value for name, value in given.items() if name not in left_out}
    # Without these, some versions retry once. RESP2 until our own HELLO: then nothing
    # but answers is sent, and the library's parser has read all that came.
    return {**kept, "retry": None, "retry_on_timeout": False, "protocol": 2}


def _db(given: Kwargs) -> int:
    try:
        return int(given.get("db") or 0)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            what=f"the client's database {quoted(given.get('db'))} is not a number"
        ) from exc


def _sentinels_of(pool: ClientObject) -> Sentinels | None:
    """The Sentinels that the client asks; None if only its own code can ask them."""
    manager: ClientObject = pool.sentinel_manager
    if not _is_theirs(type(cast("object", manager)), "Sentinel"):
        return None
    servers: list[Server] = []
    given: Kwargs = {}
    tls: TlsOptions | None = None
    for known in manager.sentinels:
        theirs = known.connection_pool
        made, given = theirs.connection_class, theirs.connection_kwargs
        if not _is_theirs(made, *_PLAIN) or not given.get("host"):
            return None
        if any(given.get(name) is not None for name in _OF_THE_LOOP):
            return None
        servers.append((str(given["host"]), int(given.get("port") or SENTINEL_PORT)))
        if made.__name__ == "SSLConnection":
            tls = ClientTls(made=made, given=given)
    return Sentinels(
        str(pool.service_name),
        tuple(servers),
        *(given.get("username"), given.get("password"), tls),
        min_others=manager.min_other_sentinels,
    )


@dataclass(frozen=True, slots=True)
class ClientTls(TlsOptions):
    """TLS as the connections of a client have it."""

    made: ClientObject = None
    given: Kwargs = field(default_factory=dict[str, Any], repr=False)

    def context(self, where: str) -> ssl.SSLContext:
        """As ``TlsOptions``."""
        try:
            context: ssl.SSLContext = self.made(**self.given).ssl_context.get()
        except Exception as exc:
            raise ConfigurationError(
                what=f"certificates for {where} cannot be used: {exc}",
                hint="see ssl_… of the client",
            ) from exc
        return context


def _can_be_cloned(pool: ClientObject) -> bool:
    """Whether all of it is the library's own, without code of the user's."""
    manager: ClientObject = getattr(pool, "sentinel_manager", None)
    given = [pool.connection_kwargs]
    if manager is not None:
        given.append(manager.sentinel_kwargs)
    if any(some.get(name) is not None for some in given for name in _OF_THE_LOOP):
        return False
    made = pool.connection_class
    if manager is None:
        return _is_theirs(made, *_PLAIN)
    sentinel = type(cast("object", manager))
    return _is_theirs(made, *_OF_SENTINEL) and _is_theirs(sentinel, "Sentinel")


def _is_theirs(kind: type, *names: str) -> bool:
    package, _, module = kind.__module__.partition(".")
    theirs = package in {"redis", "valkey"} and module.startswith("asyncio.")
    return theirs and kind.__name__ in names


async def _primary_of(pool: ClientObject) -> tuple[str, int]:
    """Where Sentinel says it is, asked by clients of this loop."""
    theirs = pool.sentinel_manager
    more: Kwargs = {}
    if getattr(theirs, "_force_master_ip", None) is not None:
        more["force_master_ip"] = theirs._force_master_ip  # noqa: SLF001 - nowhere else
    addresses = [
        (known.connection_pool.connection_kwargs[name] for name in ("host", "port"))
        for known in theirs.sentinels
    ]
    sentinel = type(theirs)(
        [tuple(address) for address in addresses],
        min_other_sentinels=theirs.min_other_sentinels,
        sentinel_kwargs=theirs.sentinel_kwargs,
        **more,
    )
    try:
        host, port = await sentinel.discover_master(pool.service_name)
    finally:
        for client in sentinel.sentinels:
            with suppress(Exception):
                await client.aclose()
    return str(host), int(port)
