"""Renewal channels: how the lease keeper's thread sends renewals to a server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import hiredis

from aiorwlock_remote._util.native import Event
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.addresses import (
    DnsResolver,
    SocketAddress,
    close_on_error,
    configure_socket,
)
from aiorwlock_remote.backends.redis.connection.connector import REPLICATION, Handshake
from aiorwlock_remote.backends.redis.connection.protocol import (
    FORMER_PRIMARY,
    READ_SIZE,
    Call,
    Plain,
    Request,
    Script,
    as_is,
    script_load,
)
from aiorwlock_remote.backends.redis.errors import (
    from_failure,
    from_reply,
    not_redis,
    not_sent,
)
from aiorwlock_remote.backends.redis.hiredis_reader import MORE, new_reader, next_reply
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import ATTEMPTS, PrimaryFinder
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import Clock, EventLoop

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.promotion import ReplicaWatch

CONFIRM_TIMEOUT = 0.5
"""Seconds for which a batch of renewals waits for the Sentinels, but at most a quarter
of the batch's own timeout."""


class RenewalChannel(Protocol):
    """Interface: runs batches of renewals in the lease keeper's thread."""

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts and return their raw replies, in order.

        An error reply is returned as an exception.

        Raises:
            BackendError: It is unknown which scripts were carried out. Raised after
                ``timeout`` seconds at the latest.
        """

    def give_up(self) -> None:
        """Make the present and all later batches fail soon. For use by any thread."""

    def close(self) -> None:
        """Close the connections that the channel opened."""


class DedicatedChannel(RenewalChannel, Protocol):
    """Renewal channel that has a connection of its own, also for other commands."""

    def run_many(
        self, batch: Sequence[Request | Plain], timeout: float
    ) -> list[Any]: ...

    def open(self, timeout: float) -> None:
        """Connect, unless there is a connection that the server has not closed.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """

    def abort(self) -> None:
        """Make the present batch fail soon. For use by any thread."""


class BlockingConnection:
    """Renewal channel over a blocking socket, for one thread at a time.

    Connects at the first use, and again at the next use after any error.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock,
        scripts: Sequence[Script],
        finder: PrimaryFinder | None = None,
    ) -> None:
        if finder is None and options.sentinels is not None:
            finder = PrimaryFinder(options.sentinels, clock)
        self._finder = finder
        self._options = options
        self._clock = clock
        self._scripts = tuple(scripts)
        self._resolver = DnsResolver()
        self._socket: socket.socket | None = None
        self._reader = new_reader()
        self._given_up = False

    def run_many(self, batch: Sequence[Request | Plain], timeout: float) -> list[Any]:
        """Run all scripts in one write; return their raw replies or errors, in order.

        A server that is silent for ``command_timeout`` counts as lost, even if
        ``timeout`` is longer. Scripts that the server forgot are loaded and run again.
        """
        return self._run([Call(as_is, args, script) for script, args in batch], timeout)

    def give_up(self) -> None:
        self._given_up = True
        self.abort()

    def abort(self) -> None:
        sock = self._socket
        if sock is not None:
            # A thread that waits in recv() returns when the socket is shut down. The
            # method of the plain socket: TLS's own would write to the peer.
            with suppress(OSError):  # not connected yet, or closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def open(self, timeout: float) -> None:
        with self._close_on_error():
            self._ensure_open(self._clock.now() + timeout)

    def _run(self, calls: Sequence[Call[Any]], timeout: float) -> list[Any]:
        deadline = self._clock.now() + timeout
        with self._close_on_error():
            self._ensure_open(deadline)
            # A silent server must not use up the whole lease: the next primary may
            # answer (test_the_keeper_does_not_spend_a_lease_on_a_silent_server).
            deadline = self._sooner(deadline, self._options.command_timeout)
            replies = self._exchange([call.packed() for call in calls], deadline)
            missing = [i for i, r in enumerate(replies) if _is_error(r, "NOSCRIPT")]
            if missing:
                again = [script_load(script).packed() for script in self._scripts]
                again += [calls[i].packed_with_text() for i in missing]
                found = self._exchange(again, deadline)[len(self._scripts) :]
                for i, reply in zip(missing, found, strict=True):
                    replies[i] = reply
        outcomes = [self._mapped(reply) for reply in replies]
        if any(_is_error(reply, "READONLY") for reply in replies):
            # The server became a replica: the next connection may find the new primary
            # (test_the_keeper_leaves_a_primary_that_became_a_replica).
            self.close()
        return outcomes

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        # Even a KeyboardInterrupt: a reply may still come, and the next batch would
        # take it for its own (test_gives_up_in_time_and_mixes_up_no_answers).
        try:
            yield
        except BaseException as exc:
            self.close()
            if isinstance(exc, hiredis.ProtocolError):
                raise not_redis(self._options.where) from exc
            if isinstance(exc, OSError | UnicodeError):  # Unicode: no such host name
                raise from_failure(exc, self._options.where) from exc
            raise

    def _ensure_open(self, deadline: float) -> None:
        if self._socket is not None and _hung_up(self._socket):
            self.close()
        if self._socket is None:
            self._open(self._sooner(deadline, self._options.connect_timeout))

    def _open(self, deadline: float) -> None:
        options, finder = self._options, self._finder
        if finder is not None:
            deadline = self._sooner(deadline, options.connect_timeout / ATTEMPTS)
            found = finder.find(self._left(deadline)).server
            options = replace(options, host=found[0], port=found[1])
        # A new parser: the old one may hold half a reply of the lost connection.
        self._reader = new_reader()
        self._dial(options, deadline)
        handshake = Handshake(options, self._scripts)
        calls = handshake.calls
        replies: list[Any] = []
        failure: OSError | None = None
        try:
            self._exchange([call.packed() for call in calls], deadline, replies)
        except OSError as exc:
            # The server may have replied why before it closed the connection
            # (test_refused_at_the_door_it_knocks_again).
            failure = exc
        for call, reply in zip(calls, replies, strict=False):
            call.set_result(reply)
        for call in calls[len(replies) :]:
            call.set_exception(from_failure(failure, options.where))
        handshake.judge()

    def _dial(self, options: Options, deadline: float) -> None:
        context = options.tls_context()
        sock = self._connected(self._addresses(options, deadline), deadline)
        configure_socket(sock)
        if context is not None:
            sock.settimeout(self._left(deadline))
            self._socket = secured = context.wrap_socket(
                sock, server_hostname=options.host, do_handshake_on_connect=False
            )
            secured.do_handshake()

    def _addresses(self, options: Options, deadline: float) -> Sequence[SocketAddress]:
        if options.path:
            return [(socket.AF_UNIX, options.path)]
        server = options.host, options.port
        return self._resolver.addresses(server, self._left(deadline))

    def _connected(
        self, addresses: Sequence[SocketAddress], deadline: float
    ) -> socket.socket:
        failure = OSError("no address")
        for tried, (family, address) in enumerate(addresses):
            try:
                self._socket = new = socket.socket(family, socket.SOCK_STREAM)
                with close_on_error(new) as sock:
                    sock.settimeout(self._left(deadline) / (len(addresses) - tried))
                    sock.connect(address)
                    return sock
            except OSError as exc:
                failure = exc
        raise failure

    def _exchange(
        self,
        commands: Sequence[bytes],
        deadline: float,
        replies: list[Any] | None = None,
    ) -> list[Any]:
        sock, reader = self._socket, self._reader
        assert sock is not None
        replies = [] if replies is None else replies
        sock.settimeout(self._left(deadline))
        sock.sendall(b"".join(commands))
        while len(replies) < len(commands):
            reply = next_reply(reader)
            if reply is not MORE:
                replies.append(reply)
                continue
            sock.settimeout(self._left(deadline))
            data = sock.recv(READ_SIZE)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
        return replies

    def _sooner(self, deadline: float, seconds: float) -> float:
        return min(deadline, self._clock.now() + seconds)

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock.now()
        if left <= 0 or self._given_up:
            raise TimeoutError
        return left

    def _mapped(self, reply: object) -> object:
        if isinstance(reply, hiredis.ReplyError):
            return from_reply(str(reply), self._options.where)
        return reply


class MainLoopChannel:
    """Renewal channel over the store's connection; fails while its loop is blocked.

    ``send_at_once`` is the method of that connection, and is called in ``loop``.
    """

    def __init__(
        self, where: str, loop: EventLoop, send_at_once: Callable[..., bool]
    ) -> None:
        self._where = where
        self._loop = loop
        self._send_at_once = send_at_once
        self._answered = Event()
        self._given_up = False

    def run_many(self, batch: Sequence[Request | Plain], timeout: float) -> list[Any]:
        if not batch:
            return []
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        self._answered = answered = Event()
        left, given_up = len(calls), False

        def done(_: Pending[Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                answered.set()

        def send() -> None:
            # Never late: the grant may have been given up meanwhile, and would be
            # renewed for nothing (test_thread_loop_channel.py).
            if given_up or self._given_up:
                return
            for call in calls:
                call.add_done_callback(done)
            if not self._send_at_once(*calls):
                for call in calls:
                    call.failed(not_sent(self._where, "there is no connection"))

        self._loop.call_soon(send)
        # `give_up` may come before the wait, or end it.
        if self._given_up or not answered.wait(timeout) or self._given_up:
            given_up = True
            raise BackendUnavailable(
                what=f"{self._where}: not renewed in {timeout:.3g} s",
                hint="the event loop was busy, or the server did not answer",
            )
        return [call.error or call.result() for call in calls]

    def give_up(self) -> None:
        self._given_up = True
        self._answered.set()

    def close(self) -> None: ...  # the connection belongs to the store


class KeeperChannel:
    """The lease keeper's renewal channel to one server, or to Sentinels' primary.

    Invariants:

    * If ``own`` cannot connect, the store's connection (``fallback``) is used: a server
      that has reached its ``maxclients`` still answers its present clients
      (test_no_room_for_the_keeper).
    * Sentinels are asked before each batch, so that a missed message about a failover
      costs little time. If the primary changes during a batch, the batch fails
      (test_primary_finder.py).
    * If a replica has left the primary and is a primary itself, a grant is renewed only
      if both have renewed it: the Sentinels have not said yet which of them counts
      (test_promotion.py).
    """

    def __init__(
        self,
        own: DedicatedChannel | None,
        fallback: MainLoopChannel,
        clock: Clock,
        finder: PrimaryFinder | None = None,
        watch: ReplicaWatch | None = None,
    ) -> None:
        """Wrap the two channels; ``own`` connects to the primary that ``finder`` knows.

        ``own=None``: the store's connection carries all renewals. ``watch``: None if
        replicas cannot be connected to.
        """
        self._own = own
        self._watch = watch
        self._fallback = fallback
        self._clock = clock
        self._finder = finder
        self._busy = False
        self._deadline = 0.0
        self._switches = 0
        if finder is not None:
            self._switches = finder.switches
            finder.on_switch(self._leave_former_primary)

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        deadline, finder = self._clock.now() + timeout, self._finder
        if finder is None:
            return self._run(batch, deadline)
        self._deadline, watch = deadline, self._watch
        finder.confirm(min(CONFIRM_TIMEOUT, timeout / 4))
        if self._switches != finder.switches:
            self._switches = finder.switches
            self.close()
        # From here on a switch aborts the batch: a former primary may not answer at
        # all.
        self._busy = True
        look: list[Plain] = [] if watch is None else [(None, REPLICATION)]
        try:
            replies = self._run([*batch, *look], deadline)
        finally:
            self._busy = False
        if self._switches != finder.switches:
            where = finder.sentinels.where
            raise BackendUnavailable(what=f"{where}: {FORMER_PRIMARY}")
        if watch is not None:
            watch.note(replies.pop())
        return replies

    def run_at_successor(self, batch: Sequence[Request]) -> list[Any] | None:
        """Run the last batch at a replica that is a primary now; None if none is.

        Within the time that the batch was given. The replies are those of ``run_many``,
        with its errors.
        """
        watch = self._watch
        if watch is None:
            return None
        successor = watch.successor(self._left(self._deadline))
        if successor is None:
            return None
        return successor.run_many(batch, self._left(self._deadline))

    def give_up(self) -> None:
        if self._watch is not None:
            self._watch.give_up()
        if self._own is not None:
            self._own.give_up()
        self._fallback.give_up()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._own is not None:
            self._own.close()

    def _run(self, batch: Sequence[Request | Plain], deadline: float) -> list[Any]:
        if self._own is not None:
            try:
                self._own.open(self._left(deadline))
            # ConfigurationError: the Sentinels may have forgotten the primary's name,
            # while the store's connection to it still works.
            except (BackendError, ConfigurationError) as exc:
                log_debug("renewal_fallback_used", error=exc)
                if self._left(deadline) <= 0:
                    raise
            else:
                return self._own.run_many(batch, self._left(deadline))
        return self._fallback.run_many(batch, self._left(deadline))

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.now())

    def _leave_former_primary(self) -> None:
        # Called in any thread. A batch that has not connected yet is left alone: it
        # goes to the new primary.
        finder, own = self._finder, self._own
        if self._busy and finder and own and self._switches != finder.switches:
            own.abort()


def _hung_up(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        pass
    return True  # also if the server sent something unasked


def _is_error(reply: object, word: str) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(word)
