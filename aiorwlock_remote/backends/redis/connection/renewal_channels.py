"""Renewals over the store's own connection, where the keeper has none of its own.

A blocking connection, for the keeper's thread: batches of scripts, one at a time.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, cast

import hiredis

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.addresses import (
    DnsResolver,
    SocketAddress,
    close_on_error,
    configure_socket,
)
from aiorwlock_remote.backends.redis.connection.calls import (
    Call,
    Request,
    Script,
    as_is,
)
from aiorwlock_remote.backends.redis.connection.handshake import Handshake
from aiorwlock_remote.backends.redis.connection.protocol import script_load
from aiorwlock_remote.backends.redis.errors import (
    from_failure,
    from_reply,
    not_redis,
    not_sent,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import ATTEMPTS, PrimaryFinder
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import Clock, EventLoop


class SendsAtOnce(Protocol):
    """The part of the store's connection that is needed."""

    def send_at_once(self, key: bytes, *calls: Call[Any]) -> bool:
        """Send them in one write where this key is; False: there is no connection."""


class DedicatedChannel(Protocol):
    """A connection of the keeper's, or of its loop's."""

    def open(self, timeout: float) -> None:
        """Connect, unless there is a connection that the server did not close.

        Raises:
            BackendError: the server cannot be reached, or is not fit for us.
        """

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``."""

    def give_up(self) -> None:
        """As ``Batches``."""

    def abort(self) -> None:
        """As ``Batches``."""

    def close(self) -> None:
        """Close it."""


class MainLoopChannel:
    """Sends from the store's event loop: one that is blocked renews nothing."""

    def __init__(self, where: str, host: EventLoop, link: SendsAtOnce) -> None:
        """Opens nothing. ``where``: the server, for messages."""
        self._where = where
        self._host = host
        self._link = link
        self._answered = threading.Event()
        self._given_up = False

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``. Nothing is sent late: it might renew what was given up."""
        if not batch:
            return []
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        self._answered = answered = threading.Event()
        left, given_up = len(calls), False

        def told(_: Pending[Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                answered.set()

        def send() -> None:
            if given_up or self._given_up:
                return
            for call in calls:
                call.add_done_callback(told)
            key = cast("bytes", batch[0][1][1])
            if not self._link.send_at_once(key, *calls):
                for call in calls:
                    call.failed(not_sent(self._where, "there is no connection"))

        self._host.call_soon(send)
        if self._given_up or not answered.wait(timeout) or self._given_up:
            given_up = True
            raise BackendUnavailable(
                what=f"{self._where}: not renewed in {timeout:.3g} s",
                hint="the event loop was busy, or the server did not answer",
            )
        return [call.error or call.result() for call in calls]

    def give_up(self) -> None:
        """As ``Batches``."""
        self._given_up = True
        self._answered.set()

    def abort(self) -> None:
        """The store hangs up its own connection."""

    def close(self) -> None:
        """The connection is the store's."""


class FallbackChannel:
    """The keeper's own connection; the store's while there is no room for another.

    A server that has reached its ``maxclients`` still answers those who are in.
    """

    def __init__(
        self, own: DedicatedChannel, spare: MainLoopChannel, host: EventLoop
    ) -> None:
        """Opens nothing."""
        self._own = own
        self._spare = spare
        self._clock = host.clock

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``."""
        deadline = self._clock.now() + timeout
        try:
            self._own.open(timeout)
        except (BackendError, ConfigurationError):  # Sentinels forget names, too
            left = deadline - self._clock.now()
            if left <= 0:
                raise
            return self._spare.run_many(batch, left)
        return self._own.run_many(batch, max(0.0, deadline - self._clock.now()))

    def give_up(self) -> None:
        """As ``Batches``, both of them."""
        self._own.give_up()
        self._spare.give_up()

    def abort(self) -> None:
        """As ``Batches``."""
        self._own.abort()

    def close(self) -> None:
        """Close the keeper's own."""
        self._own.close()


CHUNK = 65536

_MORE = object()


class BlockingConnection:
    """Opens at the first use, and again at the next use after anything went wrong.

    For one thread at a time.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock,
        scripts: Sequence[Script],
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Unconnected. ``finder``: the store's, if Sentinels watch the server."""
        if finder is None and options.sentinels is not None:
            finder = PrimaryFinder(options.sentinels, clock)
        self._finder = finder
        self._options = options
        self._clock = clock
        self._scripts = tuple(scripts)
        self._lookups = DnsResolver()
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._given_up = False

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts, in one write; the answers as they came, in order.

        A server that is silent for ``command_timeout`` counts as lost before that:
        there may be time left to renew elsewhere.

        An exception takes the place of an answer that is an error. Scripts the server
        forgot are loaded and run again.

        Raises:
            BackendError: it is not known which were carried out. After ``timeout``
                seconds at the latest.
            ConfigurationError: no such database, or unusable certificates.
        """
        return self._run([Call(as_is, args, script) for script, args in batch], timeout)

    def give_up(self) -> None:
        """As ``Batches``."""
        self._given_up = True
        self.abort()

    def abort(self) -> None:
        """As ``Batches``: a socket that is shut down keeps nobody waiting."""
        sock = self._socket
        if sock is not None:
            with suppress(OSError):  # not connected yet, or not any more
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # without TLS's own

    def close(self) -> None:
        """Close the connection, if there is one."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def open(self, timeout: float) -> None:
        """Connect, unless there is a connection that the server did not close.

        Raises:
            BackendError: the server cannot be reached, or is not fit for us.
            ConfigurationError: no such database, or unusable certificates.
        """
        with self._closing_if_failed():
            self._ready(self._clock.now() + timeout)

    def _run(self, calls: Sequence[Call[Any]], timeout: float) -> list[Any]:
        deadline = self._clock.now() + timeout
        with self._closing_if_failed():
            self._ready(deadline)
            deadline = self._sooner(deadline, self._options.command_timeout)
            answers = self._exchange([call.packed() for call in calls], deadline)
            missing = [i for i, answer in enumerate(answers) if _missing(answer)]
            if missing:
                again = [script_load(script).packed() for script in self._scripts]
                again += [calls[i].packed_whole() for i in missing]
                found = self._exchange(again, deadline)[len(self._scripts) :]
                for i, answer in zip(missing, found, strict=True):
                    answers[i] = answer
        outcomes = [self._mapped(answer) for answer in answers]
        if any(map(_of_a_replica, answers)):
            self.close()  # so that the next connection may find the new primary
        return outcomes

    @contextmanager
    def _closing_if_failed(self) -> Iterator[None]:
        """Whatever goes wrong: an answer may still be on its way."""
        try:
            yield
        except BaseException as exc:
            self.close()
            if isinstance(exc, hiredis.ProtocolError):
                raise not_redis(self._options.where) from exc
            if isinstance(exc, OSError | UnicodeError):  # Unicode: no such host name
                raise from_failure(exc, self._options.where) from exc
            raise

    def _ready(self, deadline: float) -> None:
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
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._dial(options, deadline)
        greeting = Handshake(options, self._scripts)
        calls = greeting.calls
        answers: list[Any] = []
        failure: OSError | None = None
        try:
            self._exchange([call.packed() for call in calls], deadline, answers)
        except OSError as exc:
            failure = exc  # it may have said why before it hung up
        for call, answer in zip(calls, answers, strict=False):
            call.set_result(answer)
        for call in calls[len(answers) :]:
            call.set_exception(from_failure(failure, options.where))
        greeting.judge()

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
        return self._lookups.addresses(server, self._left(deadline))

    def _connected(
        self, addresses: Sequence[SocketAddress], deadline: float
    ) -> socket.socket:
        """To the first that answers; one that is silent leaves time for the others."""
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
        answers: list[Any] | None = None,
    ) -> list[Any]:
        sock, reader = self._socket, self._reader
        assert sock is not None
        answers = [] if answers is None else answers
        sock.settimeout(self._left(deadline))
        sock.sendall(b"".join(commands))
        while len(answers) < len(commands):
            answer = reader.gets()
            if answer is not _MORE:
                answers.append(answer)
                continue
            sock.settimeout(self._left(deadline))
            data = sock.recv(CHUNK)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
        return answers

    def _sooner(self, deadline: float, seconds: float) -> float:
        return min(deadline, self._clock.now() + seconds)

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock.now()
        if left <= 0 or self._given_up:
            raise TimeoutError
        return left

    def _mapped(self, answer: object) -> object:
        if isinstance(answer, hiredis.ReplyError):
            return from_reply(str(answer), self._options.where)
        return answer


def _hung_up(sock: socket.socket) -> bool:
    """Whether the server closed it while it was idle: what is sent would be lost."""
    sock.settimeout(0)
    try:
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        pass
    return True  # also if it says something unasked


def _of_a_replica(answer: object) -> bool:
    return isinstance(answer, hiredis.ReplyError) and str(answer).startswith("READONLY")


def _missing(answer: object) -> bool:
    return isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT")
