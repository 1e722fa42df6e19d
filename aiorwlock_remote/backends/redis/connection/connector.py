"""Makes connections: dials, checks the server by a handshake, retries with pauses."""

from __future__ import annotations

import logging
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import hiredis

from aiorwlock_remote._util.threads import run_in_thread as in_thread
from aiorwlock_remote._util.threads import thread_refused
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    ProtocolHandler,
    RespProtocol,
    Script,
    SubscribeCall,
    Transport,
    as_is,
)
from aiorwlock_remote.backends.redis.errors import from_failure, from_reply, not_redis
from aiorwlock_remote.backends.redis.log import log_redis
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import ATTEMPTS, PrimaryFinder
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
)
from aiorwlock_remote.ports import EventLoop

T = TypeVar("T")

STABLE_AFTER = 5.0
"""Seconds a connection must have lasted for the retry pauses to be short again."""
RETRY_INTERVAL = 0.05
"""Seconds until the Sentinels are asked again."""
MAX_REMEMBERED_SERVERS = 16
"""Number of servers whose last connection is remembered, to be killed on return."""
REPLICATION = ("INFO", "replication")
"""Asks a primary for its replicas."""
_REPLICA = re.compile(r"slave\d+")
MIN_SERVER = (7, 0)
_NEEDS = f"Redis {'.'.join(map(str, MIN_SERVER))} or later, or Valkey, is needed"
MIN_REDACTED_LENGTH = 6
"""Passwords of at least so many characters are removed from all error texts; shorter
ones, which may be parts of ordinary words, only where they are quoted."""

Dial = Callable[[Options, RespProtocol, EventLoop], Awaitable[Transport]]
"""Opens a transport to the server in the options and attaches the protocol to it.
Raises errors of the network (``OSError``, ``EOFError``) or of this library."""


async def dial_url(
    options: Options, protocol: RespProtocol, loop: EventLoop
) -> Transport:
    """Connect with the driver of the running event loop: asyncio's or trio's."""
    # Neither library is imported for the sake of the other.
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.backends.redis.connection import trio_transport  # noqa: PLC0415

        return await trio_transport.dial(options, protocol, loop)
    from aiorwlock_remote.backends.redis.connection import asyncio_transport  # noqa: PLC0415

    return await asyncio_transport.dial(options, protocol)


@dataclass(frozen=True, slots=True)
class Peer:
    """Value object: identifies one of our connections at its server.

    ``number``: its client id. ``run``: the server's run id, which a restart changes; ""
    if the user may not ask for it. ``replicas``: of a primary that Sentinels watch.
    """

    number: int
    run: str = ""
    replicas: tuple[Server, ...] = ()


class Handshake:
    """The first commands on a connection; ``judge`` checks their replies."""

    def __init__(
        self,
        options: Options,
        scripts: Sequence[Script],
        channels: Iterable[bytes] = (),
    ) -> None:
        """Prepare the commands that log in, load scripts and subscribe to channels."""
        self._options = options
        login: tuple[str, ...] = ()
        if options.username or options.password:
            login = ("AUTH", options.username or "default", options.password or "")
        name = options.client_name
        self._hello = _HandshakeCall("HELLO", 3, *login, "SETNAME", name)
        self._select = _HandshakeCall("SELECT", options.db) if options.db else None
        # HELLO names no run, without which no connection may be killed, and it is
        # unknown to servers whose version the error is to name.
        self._info = _HandshakeCall("INFO", "server")
        watched = options.sentinels or options.client_sentinels
        self._replication = _HandshakeCall(*REPLICATION) if watched else None
        self._rest: list[Call[Any]] = [
            *(_HandshakeCall("SCRIPT", "LOAD", script.text) for script in scripts),
            *(SubscribeCall("SUBSCRIBE", channel) for channel in channels),
        ]
        # SELECT before everything that depends on the database
        # (test_a_database_is_selected_before_anything_is_subscribed).
        select = [] if self._select is None else [self._select]
        info = [self._info, *([self._replication] if self._replication else [])]
        self.calls: list[Call[Any]] = [self._hello, *select, *info, *self._rest]

    def judge(self) -> Peer:
        """Check the replies of ``calls`` (all done); return client id and run id.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The server has no such database.
        """
        raw = self._hello.result()
        if isinstance(raw, hiredis.ReplyError) and "unknown command" in str(raw):
            self._fail_without_hello(self._info.result())
        hello = self._fields(raw)
        self._check_server(hello)
        if self._select is not None:
            selected = self._select.result()
            if isinstance(selected, hiredis.ReplyError) and "range" in str(selected):
                raise ConfigurationError(
                    what=f"{self._options.where}: it has no database {self._options.db}"
                )
            self._checked(selected)
        for call in self._rest:
            self._checked(call.result())
        run = info_fields(self._info.result()).get("run_id", "")
        replicas: tuple[Server, ...] = ()
        if self._replication is not None:
            replicas = replicas_in(self._replication.result())
        return Peer(int(hello.get("id", 0)), run, replicas)

    def _fail_without_hello(self, info: object) -> NoReturn:
        where, known = self._options.where, info_fields(info).get("redis_version", "")
        self._check_version(known)
        version = f"version {known}" if known else "a server of unknown version"
        raise Unsupported(
            what=f"{where}: {version} does not know the command HELLO",
            hint="was it renamed or disabled (rename-command, an ACL, a proxy)? It is "
            f"needed, and known since Redis 6.0; {_NEEDS}",
        )

    def _fields(self, raw: object) -> dict[str, str]:
        raw = self._checked(raw)
        if not isinstance(raw, dict):
            raise not_redis(self._options.where)
        found: dict[Any, Any] = raw  # pyright: ignore[reportUnknownVariableType]
        return {text_of(name): text_of(value) for name, value in found.items()}

    def _check_server(self, hello: dict[str, str]) -> None:
        where = self._options.where
        self._check_version(hello.get("version", ""))
        if hello.get("mode") == "sentinel":
            raise Unsupported(what=f"{where}: it is a Sentinel, not a store")
        # A replica of a cluster redirects us to its primary, and may become one itself.
        replica = hello.get("role") in {"replica", "slave"}
        if replica and not self._options.seeds:
            found = self._options.sentinels is not None
            raise BackendUnavailable(
                what=f"{where}: it is a replica",
                hint="asked again" if found else "name the primary in the URL",
            )

    def _check_version(self, version: str) -> None:
        parts = [re.sub(r"\D", "", part) for part in version.split(".")[:2]]
        if version and tuple(int(part or 0) for part in parts) < MIN_SERVER:
            where = self._options.where
            raise Unsupported(
                what=f"{where}: the server's version is {version}", hint=_NEEDS
            )

    def _checked(self, raw: object) -> object:
        if not isinstance(raw, hiredis.ReplyError):
            return raw
        text, password = str(raw), self._options.password
        if password:
            # A proxy may quote in its error what it was sent, the password included
            # (test_a_short_password_is_hidden_where_it_is_quoted).
            for quote in "'\"`":
                text = text.replace(f"{quote}{password}{quote}", "…")
            # One that is too long to be a part of another word is hidden anywhere
            # (test_the_password_is_in_no_error).
            if len(password) >= MIN_REDACTED_LENGTH:
                text = text.replace(password, "…")
        error = from_reply(text, self._options.where)
        if isinstance(error, BackendError):
            raise error
        raise BackendError(what=str(error))


class _HandshakeCall(Call[Any]):
    """A call whose error reply is its result, for ``Handshake.judge`` to check."""

    __slots__ = ()

    def __init__(self, *args: str | int) -> None:
        super().__init__(as_is, args)

    def refused(self, text: str, where: str) -> None:  # noqa: ARG002 - `judge` knows it
        self.set_result(hiredis.ReplyError(text))


def info_fields(info: object) -> dict[str, str]:
    """Return the fields in a reply to INFO; none if the reply is an error."""
    pairs = (line.partition(":") for line in text_of(info).splitlines())
    return {name: value for name, colon, value in pairs if colon}


def replicas_in(info: object) -> tuple[Server, ...]:
    """Return the replicas in a primary's reply to INFO; none if the reply is an error.

    By the addresses that they announce.
    """
    found: list[Server] = []
    for name, value in info_fields(info).items():
        if _REPLICA.fullmatch(name):
            fields = (part.partition("=") for part in value.split(","))
            parts = {field: text for field, _, text in fields}
            port = parts.get("port", "")
            if parts.get("ip") and port.isdecimal() and 0 < int(port) < 65536:
                found.append((parts["ip"], int(port)))
    return tuple(found)


def text_of(raw: object) -> str:
    """Return a reply as text, whatever its type."""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


class Connector:
    """Makes the connections to a server or primary, each to replace the one before.

    The protocols of all connections report their events to ``handler``.
    """

    handshake: type[Handshake] = Handshake

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        handler: ProtocolHandler,
        dial: Dial = dial_url,
        finder: PrimaryFinder | None = None,
    ) -> None:
        if finder is None and options.sentinels is not None:
            finder = PrimaryFinder(options.sentinels, loop.clock)
        self._finder = finder
        self._dial = dial
        self._options = options
        self._loop = loop
        self._scripts = scripts
        self._handler = handler
        self._connected_at = 0.0
        self._attempts = 0
        self._peers: dict[str, Peer] = {}
        self.outage: OutageLog = OutageLog(options.where)
        self.peer = None

    @property
    def peer(self) -> Peer | None:
        """The connection made last; None before the first.

        The next handshake with its server kills it there (CLIENT KILL). So do those
        with earlier servers, when a failover leads back to them
        (test_sentinel_cases.py).
        """
        return self._peer

    @peer.setter
    def peer(self, peer: Peer | None) -> None:
        self._peer = peer
        if peer is not None and peer.run:
            self._peers.pop(peer.run, None)
            self._peers[peer.run] = peer
            if len(self._peers) > MAX_REMEMBERED_SERVERS:
                del self._peers[next(iter(self._peers))]

    async def connect(self, channels: Sequence[bytes]) -> RespProtocol:
        """Make a connection and subscribe to ``channels``, within ``connect_timeout``.

        With Sentinels, the primary is found first. While that server is unreachable or
        no primary, the search is repeated, for half of ``connect_timeout``.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        options, clock = self._options, self._loop.clock
        timeout, attempt = options.connect_timeout, options.connect_timeout / ATTEMPTS
        if self._finder is None:
            return await self.connect_to(options, channels, timeout)
        if options.sentinels is None:
            switches = self._finder.switches
            with suppress(BackendError):  # no thread can be started
                _, switches = await run_in_thread(partial(self.locate, attempt))
            return await self.connect_to(options, channels, timeout, switches)
        # The last attempt must end, and its error be raised, within the timeout.
        last = clock.now() + (ATTEMPTS / 2) * attempt
        while True:
            search = partial(self.locate, attempt / 2)
            there, switches = await run_in_thread(search)
            try:
                return await self.connect_to(there, channels, attempt, switches)
            except BackendUnavailable:
                if clock.now() > last:
                    raise
            await anyio.sleep(RETRY_INTERVAL)

    def locate(self, timeout: float) -> tuple[Options, int]:
        """Ask the Sentinels, if there are any; block for ``timeout`` s at most.

        Return the options of the server to connect to, and how often the primary had
        changed by then. Raises the errors of ``PrimaryFinder.find``.
        """
        options, finder = self._options, self._finder
        if finder is None:
            return options, 0
        if options.sentinels is None:
            # A user's client would believe the first Sentinel that answers, and what
            # that Sentinel lists: the former primary, until all replicas follow the new
            # one (test_a_client_that_comes_just_after_a_failover).
            with suppress(BackendError, ConfigurationError):
                finder.find(timeout)
            return options, finder.switches
        found = finder.find(timeout)
        host, port = found.server
        return replace(options, host=host, port=port), found.switches

    async def reconnect(self, channels: Sequence[bytes]) -> RespProtocol:
        """Call ``connect`` until it succeeds, with growing pauses between attempts."""
        if self._loop.clock.now() - self._connected_at > STABLE_AFTER:
            self._attempts = 0
        while True:
            # The first attempt after a connection that was never there goes at once.
            if self.peer is not None or self._attempts:
                await anyio.sleep(back_off(self._attempts, random.random()))
            self._attempts += 1
            try:
                return await self.connect(channels)
            except Exception as exc:  # noqa: BLE001 - defects, too
                self.outage.note("redis_away", exc)

    async def connect_to(
        self,
        options: Options,
        channels: Sequence[bytes],
        timeout: float,
        switches: int = 0,
    ) -> RespProtocol:
        """Make one attempt to connect to the server in ``options``, as ``connect``.

        ``switches``: of the ``PrimaryFinder`` when it found that server.
        """
        is_current: Callable[[], bool] | None = None
        if (finder := self._finder) is not None:
            is_current = lambda: finder.switches == switches  # noqa: E731
        protocol = RespProtocol(options.where, self._scripts, self._handler, is_current)
        try:
            with anyio.fail_after(timeout):
                protocol.transport = await self._dial(options, protocol, self._loop)
                try:
                    peer = await self._shake_hands(options, protocol, channels)
                # Also if it was cancelled: no socket may be left behind
                # (test_giving_up_while_connecting).
                except BaseException:
                    protocol.transport.abort()
                    with anyio.CancelScope(shield=True):
                        await protocol.transport.aclose()
                    raise
        except BackendError:
            raise
        except (OSError, EOFError, UnicodeError) as exc:  # Unicode: no such host name
            raise from_failure(exc, options.where) from exc
        self.peer = peer
        if finder is not None:
            finder.saw_replicas(peer.replicas, switches)
        self._connected_at = self._loop.clock.now()
        return protocol

    async def _shake_hands(
        self, options: Options, protocol: RespProtocol, channels: Sequence[bytes]
    ) -> Peer:
        handshake = self.handshake(options, self._scripts, channels)
        protocol.send_all(handshake.calls)
        for call in handshake.calls:
            with suppress(BackendError):  # `judge` looks at all of them together
                await call
        peer = handshake.judge()
        before = self._peers.get(peer.run)
        # A command that is still on its way over our lost connection must not be done
        # after newer ones (test_the_lost_connection_is_ended_at_the_server). Only in
        # the same run of the server: after a restart the number may be that of another
        # client (test_no_foreign_connection_is_ended_after_a_restart). A user without
        # the right to ask for the run (INFO) or to kill does without
        # (test_a_user_who_may_do_little).
        if before is not None:
            kill = _HandshakeCall("CLIENT", "KILL", "ID", before.number)
            protocol.send_all([kill])
            await kill
        # Lost, or outdated by a failover, while the commands were answered.
        if not protocol.alive or protocol.leave_former_primary():
            raise EOFError
        return peer


class OutageLog:
    """Logs why there is no connection: each reason once, until there is a connection.

    Reasons that alternate (one of two addresses is silent, the other refuses) would
    otherwise fill the log for as long as the server is away.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._logged: set[str] = set()
        self.reason: str = ""
        """The last error, for messages."""

    def note(self, event: str, error: Exception) -> None:
        """Log ``event`` with the reason ``error``, unless that reason was logged."""
        self.reason = str(error)
        if self.reason in self._logged:
            return
        self._logged.add(self.reason)
        # An error of another kind is a defect of ours, and its traceback is needed.
        defect = None if isinstance(error, LockError) else error
        log_redis(event, exc_info=defect, server=self._server, error=self.reason)

    def recovered(self) -> None:
        """Log that there is a connection again, if an error was logged."""
        if self._logged:
            log_redis("redis_reconnected", logging.INFO, server=self._server)
        self._logged.clear()


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a thread; if cancelled, do not wait for the thread.

    The thread does not count towards anyio's limit, which the user's calls may have
    used up.

    Raises:
        BackendUnavailable: The system refused to start a thread.
    """
    try:
        return await in_thread(function, anyio.CapacityLimiter(1), abandon=True)
    except RuntimeError as exc:
        raise thread_refused(exc) from exc
