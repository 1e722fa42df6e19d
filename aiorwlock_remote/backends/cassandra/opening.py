"""Connecting: in one thread that is left to itself if nobody waits for it any more."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.backends.cassandra import errors
from aiorwlock_remote.backends.cassandra.connection import connection_class
from aiorwlock_remote.backends.cassandra.driver import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    DCAwareRoundRobinPolicy,
    ExecutionProfile,
    ExponentialReconnectionPolicy,
    NoHostAvailable,
    OperationTimedOut,
    PlainTextAuthProvider,
    Session,
    TokenAwarePolicy,
    dict_factory,
    is_legacy,
)
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import (
    SessionClient,
    execution_profile,
)
from aiorwlock_remote.backends.cassandra.socket_reader import SocketReader, socket_loop
from aiorwlock_remote.backends.cassandra.table import Table, open_table
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

# A stopped node keeps its connections: only silence gives it away. Together with the
# request timeout this bounds how long a stopped node holds up those who ask it.
HEARTBEAT = 0.5
HEARTBEAT_TIMEOUT = 1.25
NODE_TIMEOUT = 2.0
"""Seconds for one try at one node; who says nothing is tried again."""
# Seconds between tries to reach a node that is down, first and at most. The driver's
# own policy ends at ten minutes: so long locks would stay away after a long outage.
RETRY_INTERVALS = (0.5, 2.0)
# Of Cassandra 4.0 and later: the driver would dial three times to find that out.
PROTOCOL = 5

T = TypeVar("T")


async def connect(options: Options, host: EventLoop) -> Table:
    """The table over a session of our own.

    Raises:
        ConfigurationError: certificates, or a data centre that is not there.
        BackendError: not in ``connect_timeout``, no contact point answers, the password
            is wrong, or the table is not fit.
    """
    context = options.tls_context()
    until = host.clock.now() + options.connect_timeout
    reads, loop = socket_loop(host), threading.get_ident()

    def opened() -> Table:
        while True:
            try:
                reader = None if reads is None else SocketReader(reads, loop)
                return _open(options, context, reader)
            except NoHostAvailable as exc:
                if not _was_silent(exc) or host.clock.now() >= until:
                    raise

    return await run_in_thread(
        host, opened, options.connect_timeout, _close_table, options
    )


def _open(
    options: Options, context: ssl.SSLContext | None, reader: SocketReader | None
) -> Table:
    closing = ExitStack()
    if reader is not None:
        closing.callback(reader.close)
    try:
        cluster = _cluster(options, context, reader)
        closing.callback(cluster.shutdown)
        session = _session(cluster, options)
        profile = session.get_execution_profile(EXEC_PROFILE_DEFAULT)
        wire = SessionClient(session, profile, options, reader)
        return open_table(wire, options, closing.close)
    except BaseException:
        closing.close()
        raise


def _was_silent(exc: Exception) -> bool:
    """Whether a node took the connection and then said nothing: a busy one, perhaps."""
    found: Any = getattr(exc, "errors", None)
    told: list[object] = list(found.values()) if hasattr(found, "values") else []
    return any(isinstance(error, OperationTimedOut) for error in told)


async def use_session(session: Session, options: Options, host: EventLoop) -> Table:
    """The table over a user's session, which is never closed or changed.

    One with legacy settings cannot be asked for rows of our kind: then another session
    of the same cluster object is used, and closed with the table.

    Raises:
        ConfigurationError: it has been closed.
        BackendError: as ``connect``.
    """
    if session.is_shutdown:
        raise ConfigurationError(what="the session given to CassandraBackend is closed")

    def opened() -> Table:
        if is_legacy(session.cluster):
            own = session.cluster.connect()
            own.row_factory = dict_factory
            wire = SessionClient(own, None, options)
            try:
                return open_table(wire, options, own.shutdown)
            except BaseException:
                own.shutdown()
                raise
        profile = session.execution_profile_clone_update(
            EXEC_PROFILE_DEFAULT, **execution_profile(options)
        )
        return open_table(
            SessionClient(session, profile, options), options, _leave_open
        )

    return await run_in_thread(
        host, opened, options.connect_timeout, _close_table, options
    )


async def run_in_thread(
    host: EventLoop,
    function: Callable[[], T],
    timeout: float,
    undo: Callable[[T], object],
    options: Options,
) -> T:
    """What a blocking function returns, from a thread of its own.

    If it takes longer than ``timeout`` seconds or the caller is cancelled, nobody waits
    for it any more, and what it returns after all is given to ``undo``, in a thread.

    Raises:
        BackendUnavailable: not in time; else what the function raises, mapped.
    """
    pending: Pending[T] = Pending()
    taken = False

    def run() -> None:
        try:
            value = function()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            error = errors.from_driver(exc, options.where)
            error.__cause__ = None if error is exc else exc
            host.call_soon(pending.set_exception, error)
        else:
            host.call_soon(pending.set_result, value)

    def unwanted(pending: Pending[T]) -> None:
        if pending.error is None:
            _start(lambda: undo(pending.result()))

    _start(run)
    try:
        with anyio.move_on_after(timeout):
            value = await pending
            taken = True
            return value
        raise BackendUnavailable(
            what=f"{options.where}: not connected in {timeout:g} s", nothing_done=True
        )
    finally:
        if not taken:
            pending.add_done_callback(unwanted)


def _start(function: Callable[[], object]) -> None:
    def run() -> None:
        try:
            function()
        except Exception:  # noqa: BLE001 - it is logged
            log_event(log, "background thread failed", logging.ERROR, exc_info=True)

    start_thread(run, "cassandra")


def _load_balancing(options: Options) -> object:
    # Contenders for a resource meet at one coordinator, its first live replica: two
    # coordinators would outbid each other's ballots.
    return TokenAwarePolicy(
        DCAwareRoundRobinPolicy(options.local_dc or ""), shuffle_replicas=False
    )


def _cluster(
    options: Options, context: ssl.SSLContext | None, reader: SocketReader | None
) -> Any:  # noqa: ANN401 - the driver's Cluster
    auth = None
    if options.username is not None:
        auth = PlainTextAuthProvider(options.username, options.password or "")
    return Cluster(
        options.hosts,
        port=options.port,
        protocol_version=PROTOCOL,
        compression=False,  # requests are small
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                _load_balancing(options), **execution_profile(options)
            )
        },
        auth_provider=auth,
        ssl_context=context,
        connection_class=None if reader is None else connection_class(reader),
        connect_timeout=min(NODE_TIMEOUT, options.connect_timeout),
        control_connection_timeout=min(NODE_TIMEOUT, options.connect_timeout),
        reconnection_policy=ExponentialReconnectionPolicy(*RETRY_INTERVALS),
        idle_heartbeat_interval=HEARTBEAT,
        idle_heartbeat_timeout=HEARTBEAT_TIMEOUT,
        # Else a stopped node would be waited for; one that lacks a statement asks.
        prepare_on_all_hosts=False,
        reprepare_on_up=False,
        application_name="aiorwlock-remote",
    )


def _session(cluster: Any, options: Options) -> Session:  # noqa: ANN401
    """A session in the right data centre.

    Where there are several and none is named the driver would take any of them; where
    the name is wrong, it finds every node too far away.
    """
    try:
        session = cluster.connect()
    except NoHostAvailable:
        _check_dc(cluster, options)
        raise
    _check_dc(cluster, options)
    # Transactions are ordered by their ballots: our clock would say nothing.
    session.use_client_timestamp = False
    return session


def _check_dc(cluster: Any, options: Options) -> None:  # noqa: ANN401
    hosts = cluster.metadata.all_hosts()
    known: list[str] = sorted({host.datacenter for host in hosts if host.datacenter})
    named = options.local_dc
    if (named is None and len(known) > 1) or (named and known and named not in known):
        asked = f"no data centre {named!r}" if named else "several data centres"
        raise ConfigurationError(
            what=f"{options.where}: {asked}; it has {', '.join(known)}",
            hint=f"?local_dc={known[0]}",
        )


def _close_table(table: Table) -> None:
    table.close()


def _leave_open() -> None:
    """Whoever opened a session closes it."""
