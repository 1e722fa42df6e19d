"""Opens sessions in a thread, which finishes and closes them if the caller gives up."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

import anyio

from aiorwlock_remote._util.native import gevent_patched
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.backends.cassandra import driver, errors
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import (
    SessionClient,
    execution_profile,
)
from aiorwlock_remote.backends.cassandra.table import Table, open_table
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

# The native protocol. Cassandra 4.0 and later have it. Negotiation would take three
# connections.
PROTOCOL = 5

# Seconds. A stopped node keeps its connections, and only its silence shows that it is
# stopped. With the request timeout these bound for how long it delays requests.
HEARTBEAT = 0.5
HEARTBEAT_TIMEOUT = 1.25

# Seconds for one attempt at one node. A node that says nothing is tried again.
NODE_TIMEOUT = 2.0

# Seconds between attempts to reach a node that is down, first and at most. The policy
# of the driver grows to ten minutes: locks would stay away long after an outage.
RETRY_INTERVALS = (0.5, 2.0)


class AnnouncedEndConnection(driver.Connection):
    """Connection of the driver that fails at once if the server closes it.

    Over libev the driver would wait for its first answer until the timeout, as if the
    server said nothing.
    """

    last_error: Exception | None

    def close(self) -> None:
        super().close()
        if not self.connected_event.is_set():
            text = f"Connection to {self.endpoint} was closed"
            self.last_error = self.last_error or driver.ConnectionShutdown(text)
            self.connected_event.set()


async def connect(options: Options, loop: EventLoop) -> Table:
    """Connect a new session, and return the lock table after checking it.

    Closing the table closes the session. Raises ``ConfigurationError`` for a wrong
    ``local_dc`` or an unreadable certificate, and ``BackendError`` if no node answers
    within ``connect_timeout`` seconds or the table is not fit for locks.
    """
    context = options.tls_context()
    until = loop.clock.now() + options.connect_timeout

    def opened() -> Table:
        while True:
            try:
                return _open(options, context)
            except driver.NoHostAvailable as exc:
                # A busy node accepts connections before it answers, so it is tried
                # again (test_a_node_that_says_nothing_at_first_is_tried_again).
                if not _was_silent(exc) or loop.clock.now() >= until:
                    raise

    return await _open_in_thread(opened, options, loop)


def _open(options: Options, context: ssl.SSLContext | None) -> Table:
    cluster = _cluster(options, context)
    try:
        session = _session(cluster, options)
        profile = session.get_execution_profile(driver.EXEC_PROFILE_DEFAULT)
        client = SessionClient(session, profile, options)
        return open_table(client, options, cluster.shutdown)
    except BaseException:
        cluster.shutdown()
        raise


def _was_silent(exc: Exception) -> bool:
    by_host: Any = getattr(exc, "errors", None)
    found: list[object] = list(by_host.values()) if hasattr(by_host, "values") else []
    return any(isinstance(error, driver.OperationTimedOut) for error in found)


async def use_session(
    session: driver.Session, options: Options, loop: EventLoop
) -> Table:
    """Return the lock table after checking it through a user's session.

    The session is never changed or closed. A session with legacy settings cannot return
    rows as dicts: then another session of the same Cluster object is used, and closed
    with the table. Raises ``ConfigurationError`` if the session is closed.
    """
    if session.is_shutdown:
        raise ConfigurationError(
            what="the session given to CassandraBackend is closed",
            hint="keep it open while locks are in use",
        )

    def opened() -> Table:
        if driver.is_legacy(session, options.request_timeout):
            own = session.cluster.connect()
            own.row_factory = driver.dict_factory
            client = SessionClient(own, None, options)
            try:
                return open_table(client, options, own.shutdown)
            except BaseException:
                own.shutdown()
                raise
        profile = session.execution_profile_clone_update(
            driver.EXEC_PROFILE_DEFAULT, **execution_profile(options)
        )
        client = SessionClient(session, profile, options)
        return open_table(client, options, lambda: None)

    return await _open_in_thread(opened, options, loop)


async def _open_in_thread(
    function: Callable[[], Table], options: Options, loop: EventLoop
) -> Table:
    if gevent_patched():
        raise Unsupported(
            what="after gevent.monkey.patch_all() the threads of cassandra-driver are "
            "greenlets of a thread that ends",
            hint="use the locks in a process without gevent, or another store",
        )
    # If the function takes longer than ``connect_timeout`` or the caller is cancelled,
    # its thread continues, and another thread closes the table (test_opening.py).
    pending: Pending[Table] = Pending()
    taken = False

    def run() -> None:
        try:
            table = function()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            error = errors.from_driver(exc, options.where)
            # An error that needs no mapping must not become its own cause.
            error.__cause__ = None if error is exc else exc
            loop.call_soon(pending.set_exception, error)
        else:
            loop.call_soon(pending.set_result, table)

    def unwanted(pending: Pending[Table]) -> None:
        if pending.error is None:
            _start(pending.result().close)

    _start(run)
    try:
        with anyio.move_on_after(options.connect_timeout):
            table = await pending
            taken = True
            return table
        seconds = f"{options.connect_timeout:g} s"
        raise BackendUnavailable(
            what=f"{options.where}: connecting timed out after {seconds}",
            hint="raise connect_timeout, if the nodes are up",
            nothing_done=True,
        )
    finally:
        if not taken:
            pending.add_done_callback(unwanted)


def _start(function: Callable[[], object]) -> None:
    def run() -> None:
        try:
            function()
        except Exception:  # noqa: BLE001 - it is logged
            log_event(log, "background_thread_failed", logging.ERROR, exc_info=True)

    start_thread(run, "cassandra")


def _load_balancing(options: Options) -> object:
    # Contenders for a resource meet at one coordinator, its first live replica. Two
    # coordinators would outbid each other's ballots.
    return driver.TokenAwarePolicy(
        driver.DCAwareRoundRobinPolicy(options.local_dc or ""), shuffle_replicas=False
    )


def _cluster(options: Options, context: ssl.SSLContext | None) -> Any:  # noqa: ANN401 - the driver's Cluster
    auth = None
    if options.username is not None:
        auth = driver.PlainTextAuthProvider(options.username, options.password or "")
    return driver.Cluster(
        options.hosts,
        port=options.port,
        protocol_version=PROTOCOL,
        compression=False,  # requests are small
        execution_profiles={
            driver.EXEC_PROFILE_DEFAULT: driver.ExecutionProfile(
                _load_balancing(options), **execution_profile(options)
            )
        },
        auth_provider=auth,
        ssl_context=context,
        connection_class=AnnouncedEndConnection,
        connect_timeout=min(NODE_TIMEOUT, options.connect_timeout),
        control_connection_timeout=min(NODE_TIMEOUT, options.connect_timeout),
        reconnection_policy=driver.ExponentialReconnectionPolicy(*RETRY_INTERVALS),
        idle_heartbeat_interval=HEARTBEAT,
        idle_heartbeat_timeout=HEARTBEAT_TIMEOUT,
        # Otherwise prepare() would wait for a stopped node. A node that lacks a
        # statement asks for it.
        prepare_on_all_hosts=False,
        reprepare_on_up=False,
        application_name="aiorwlock-remote",
    )


def _session(cluster: Any, options: Options) -> driver.Session:  # noqa: ANN401
    # The driver would use any of several data centres if none is named, and with a
    # wrong name finds every node too far away.
    try:
        session = cluster.connect()
    except driver.NoHostAvailable:
        _check_dc(cluster, options)
        raise
    _check_dc(cluster, options)
    # Transactions are ordered by their ballots; a timestamp of our clock says nothing.
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
