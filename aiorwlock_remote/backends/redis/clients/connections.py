"""Opens connections with the class and settings of a redis-py or valkey-py client."""

from __future__ import annotations

import ssl
import sys
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import anyio

from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.asyncio_transport import (
    ClientObject,
    StreamTransport,
    disconnect,
    take_over,
)
from aiorwlock_remote.backends.redis.connection.connector import Dial
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connections import ConnectionFactory
from aiorwlock_remote.backends.redis.errors import from_client
from aiorwlock_remote.backends.redis.options import CLIENT_NAME, PORT, Options
from aiorwlock_remote.backends.redis.sentinel import PORT as SENTINEL_PORT
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import EventLoop

Kwargs = dict[str, Any]

_HANDSHAKE = ("db", "client_name")
"""Settings that this library's own handshake sends."""
_RETRIES = ("retry", "retry_on_error", "retry_on_timeout", "health_check_interval")
_NOT_OURS = (
    # To move a connection during maintenance is up to the pool, and to its RESP3.
    *("maint_notifications_config", "maint_notifications_pool_handler"),
    *("orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
    *("himport_registry", "event_dispatcher", "decode_responses"),
)
_PLAIN = ("Connection", "SSLConnection", "UnixDomainSocketConnection")
_OF_SENTINEL = ("SentinelManagedConnection", "SentinelManagedSSLConnection")
_USER_CODE = ("credential_provider", "redis_connect_func", "valkey_connect_func")
"""Settings that are code of the user's, which may need the user's event loop."""


def client_connections(
    pool: ClientObject, connect_timeout: float
) -> tuple[Options, ClientConnectionFactory]:
    """Return the options of a client's pool, and a factory that connects like it.

    ``connect_timeout``: seconds until a connection must be usable, and for which a
    server may be silent if the client has no ``socket_timeout``.

    Raises:
        ConfigurationError: The database in the client's settings is not a number.
    """
    given: Kwargs = pool.connection_kwargs
    # The client's own patience with a silent server, if its user has set one.
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


# Why neither the client's pool nor its commands are used: a pool gives every command
# another connection, so a release may overtake the acquire it follows. A cancelled
# command makes the client drop its connection. A failed one makes it send EVALSHA
# again, three times by default, though the first may have been carried out
# (test_client.py: test_a_lost_reply_is_not_repeated_though_the_client_would). So the
# pool is asked for its connection class and its settings only. A connection made of
# these connects as the user wants it (address, TLS, Sentinel, credentials, subclasses),
# without retries. Then RespProtocol takes over its two streams and speaks RESP3 on
# them, whatever protocol and decoding the client has
# (test_protocol_and_decoding_do_not_matter).
class ClientConnectionFactory(ConnectionFactory):
    """Opens connections with the class and the settings of a client's pool."""

    def __init__(self, pool: ClientObject) -> None:
        self._pool = pool
        self.off_loop: bool = _can_be_cloned(pool)

    def dial(
        self,
        finder: PrimaryFinder | None,
        *,
        in_thread: bool = False,
        server: Server | None = None,
    ) -> Dial:
        return partial(self._dial, finder, in_thread=in_thread, server=server)

    async def _dial(
        self,
        finder: PrimaryFinder | None,
        options: Options,
        protocol: RespProtocol,
        _loop: EventLoop,
        *,
        in_thread: bool,
        server: Server | None,
    ) -> StreamTransport:
        made, settings = self._pool.connection_class, _settings(self._pool)
        if (in_thread or finder is not None) and made.__name__ in _OF_SENTINEL:
            # Sentinel's connection class asks through its pool, whose clients belong to
            # the user's loop, and learns of a failover too late. Its plain base class
            # connects to a given address.
            made = next(c for c in made.__mro__ if c.__name__ in _PLAIN)
            settings.pop("connection_pool", None)
            try:
                known = None if finder is None else finder.known
                settings["host"], settings["port"] = server or await _primary_of(
                    self._pool, known
                )
            except Exception as exc:
                raise from_client(exc, options.where) from exc
        transport = await _connected(options, protocol, made, settings)
        # A class of the user's asks by itself, and believes a Sentinel that has not
        # heard of the failover; `finder` has asked all of them.
        if finder is not None and finder.was_left(transport.server):
            await transport.aclose()
            raise BackendUnavailable(
                what=f"{options.where}: sent to the primary before the failover",
                nothing_done=True,
            )
        if finder is not None and transport.server is not None:
            finder.assume(transport.server)
        return transport


async def _connected(
    options: Options, protocol: RespProtocol, made: ClientObject, settings: Kwargs
) -> StreamTransport:
    try:
        connection = made(**settings)
    except Exception as exc:
        raise ConfigurationError(
            what=f"{options.where}: the client's settings cannot be used: {exc}"
        ) from exc
    try:
        await connection.connect()
        return take_over(protocol, connection, options.where)
    except BaseException as exc:
        # Also if it was cancelled. CPython closes a connection of redis-py with its
        # last reference, so no test fails without this line; not every class of a
        # user's, nor every interpreter, does so.
        with anyio.CancelScope(shield=True):
            await disconnect(connection)
        if isinstance(exc, Exception):
            raise from_client(exc, options.where) from exc
        raise


def _settings(pool: ClientObject) -> Kwargs:
    left_out = {*_HANDSHAKE, *_RETRIES, *_NOT_OURS}
    given = cast("Kwargs", pool.connection_kwargs)
    kept = {name: value for name, value in given.items() if name not in left_out}
    # Without retry=None some versions retry once. RESP2 until our own HELLO: the server
    # sends nothing but replies then, so the library's parser has read all that came and
    # leaves nothing in its buffer.
    return {**kept, "retry": None, "retry_on_timeout": False, "protocol": 2}


def _db(given: Kwargs) -> int:
    try:
        return int(given.get("db") or 0)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            what=f"the client's database {quoted(given.get('db'))} is not a number"
        ) from exc


def _sentinels_of(pool: ClientObject) -> Sentinels | None:
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
        if any(given.get(name) is not None for name in _USER_CODE):
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
    """TLS settings of a client, whose own connection class makes the SSL context."""

    made: ClientObject = None
    given: Kwargs = field(default_factory=dict[str, Any], repr=False)

    def context(self, where: str) -> ssl.SSLContext:
        try:
            context: ssl.SSLContext = self.made(**self.given).ssl_context.get()
        except Exception as exc:
            raise ConfigurationError(
                what=f"certificates for {where} cannot be used: {exc}",
                hint="see ssl_… of the client",
            ) from exc
        return context


def _can_be_cloned(pool: ClientObject) -> bool:
    manager: ClientObject = getattr(pool, "sentinel_manager", None)
    given = [pool.connection_kwargs]
    if manager is not None:
        given.append(manager.sentinel_kwargs)
    if any(some.get(name) is not None for some in given for name in _USER_CODE):
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


async def _primary_of(pool: ClientObject, known: Server | None) -> Server:
    """Return where the client connects to reach the primary.

    ``known``: the primary that its Sentinels have named to us; None: the client's own
    code asks them.
    """
    theirs = pool.sentinel_manager
    # A copy keeps every setting, ``force_master_ip`` too, which has no public name.
    sentinel = copy(theirs)
    # Clients of its own: the others belong to the user's loop.
    asked = [] if known else [_clone(each, theirs) for each in theirs.sentinels]
    sentinel.sentinels = [_Told(pool.service_name, known)] if known else asked
    try:
        host, port = await sentinel.discover_master(pool.service_name)
    finally:
        for each in asked:
            with suppress(Exception):
                await each.aclose()
    return str(host), int(port)


def _clone(asked: ClientObject, manager: ClientObject) -> ClientObject:
    where = asked.connection_pool.connection_kwargs
    settings = manager.sentinel_kwargs
    return type(asked)(host=where["host"], port=where["port"], **settings)


class _Told:
    """Answers as the client of a Sentinel that names ``known`` as the primary."""

    def __init__(self, name: str, known: Server) -> None:
        self._name = name
        self._known = known

    async def sentinel_masters(self) -> dict[str, dict[str, Any]]:
        host, port = self._known
        state = {"ip": host, "port": port, "is_master": True}
        state |= {"is_sdown": False, "is_odown": False}
        # Whether the Sentinel knows enough others, ``PrimaryFinder`` has checked.
        return {self._name: {**state, "num-other-sentinels": sys.maxsize}}
