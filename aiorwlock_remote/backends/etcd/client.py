"""A client of an etcd cluster: one connection at a time, to the next member if lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.errors import from_driver, is_stale_token
from aiorwlock_remote.backends.etcd.grpc_connection import (
    Call,
    Disconnected,
    GrpcConnection,
    GrpcError,
    Headers,
)
from aiorwlock_remote.backends.etcd.options import Endpoint, Options, shown
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.etcd")

T = TypeVar("T")

NEXT_ENDPOINT = 0.3
"""Seconds after which the next member is tried beside one that has not answered."""
OPENED_IN = 5.0
"""Seconds after which an attempt to reach any member fails."""


class Client:
    """Sends calls to the cluster. Belongs to one asyncio loop.

    A connection is used only after its member has answered a linearizable read, so it
    has a leader, and has said that it is of the same cluster as before: after a restore
    from a snapshot, revisions may repeat, and a swap that was computed before the
    restore could be carried out.
    """

    def __init__(self, options: Options, tls: ssl.SSLContext | None) -> None:
        self.options: Options = options
        self.cluster_id: int = 0
        """Of the first member that has answered; 0: none has."""
        self.revision: int = 0
        """The highest revision of the cluster that an answer has shown."""
        self.member: str = ""
        """Address of the member to which the last connection was."""
        start, end = options.range_of(None)
        # Not ``Maintenance.Status``: with logins, that is for the user root alone.
        self._probe = messages.get_range(start, end, 1, keys_only=True)
        self._tls = tls
        self._first = 0  # of the endpoints, when a connection is made
        self._connection: GrpcConnection | None = None
        self._opening: asyncio.Task[GrpcConnection] | None = None
        self._token: Headers = []

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and not self._connection.closed

    def saw(self, revision: int) -> None:
        """Note a revision that the cluster has reached."""
        self.revision = max(self.revision, revision)

    async def open(self, seconds: float) -> GrpcConnection:
        """Return the connection, a new one if it is lost; raise ``BackendError``.

        ``seconds``: how long to wait for a new one.
        """
        if self._connection is not None and not self._connection.closed:
            return self._connection
        # One attempt for all callers; a caller that gives up does not end it.
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._opening)
        except TimeoutError as exc:
            late = Disconnected("no member has answered in time", unsent=True)
            raise from_driver(late, self.options.where) from exc
        except Exception as exc:
            raise from_driver(exc, self.options.where) from exc

    async def call(
        self,
        path: str,
        request: bytes,
        parse: Callable[[bytes], T],
        seconds: float = 0.0,
    ) -> T:
        """Send a request, and return the answer; raise ``BackendError``.

        Args:
            path: The method, as in ``messages``.
            request: The request.
            parse: Reads the answer; raises ``ValueError``.
            seconds: How long to wait for the answer; 0: ``request_timeout``.
        """
        limit = seconds or self.options.request_timeout
        connection = await self.open(limit)
        try:
            async with asyncio.timeout(limit):
                return parse(await self._ask(connection, path, request))
        except TimeoutError as exc:
            # This member, or the one that leads it, may be stopped: ask another one.
            self._drop(connection, "no answer in time")
            raise from_driver(exc, self.options.where) from exc
        except Exception as exc:
            raise from_driver(exc, self.options.where) from exc

    async def stream(
        self,
        path: str,
        on_message: Callable[[bytes], object],
        on_end: Callable[[Exception | None], object],
    ) -> Stream:
        """Begin a call with many messages both ways; raise ``BackendError``."""
        connection = await self.open(self.options.request_timeout)
        # A member that has lost its leader ends the stream, and so says so.
        metadata = [*self._token, ("hasleader", "true")]
        call = Call(path, metadata, on_message, on_end)
        connection.begin(call, last=False)
        return Stream(connection, call)

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abort()

    # ----------------------------------------------------------------------- inside

    def _opened(self, task: asyncio.Task[GrpcConnection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    def _drop(self, connection: GrpcConnection, why: str) -> None:
        if not connection.closed:
            log_event(log, "etcd_connection_dropped", server=self.member, why=why)
            connection.abort(why)
            self._first += 1

    async def _open(self) -> GrpcConnection:
        """Connect to the first member that answers, each beside those before it.

        Those that have failed are tried again as long as another one says nothing: it
        may be stopped, and the others elect a leader.
        """
        endpoints = self.options.endpoints
        first = self._first % len(endpoints)
        left, failed = [*endpoints[first:], *endpoints[:first]], list[Endpoint]()
        attempts: dict[asyncio.Task[GrpcConnection], Endpoint] = {}
        error: Exception = Disconnected("no member can be reached", unsent=True)
        until = asyncio.get_running_loop().time() + OPENED_IN
        try:
            while (left or attempts) and asyncio.get_running_loop().time() < until:
                if left:
                    endpoint = left.pop(0)
                    attempt = asyncio.ensure_future(self._greet(endpoint))
                    attempts[attempt] = endpoint
                done, _ = await asyncio.wait(
                    attempts, timeout=NEXT_ENDPOINT, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    endpoint = attempts.pop(attempt)
                    try:
                        connection = attempt.result()
                    except Exception as exc:  # noqa: BLE001 - the last one is raised
                        error = _graver(error, exc)
                        failed.append(endpoint)
                    else:
                        self._first = endpoints.index(endpoint)
                        self.member = shown(endpoint)
                        return connection
                if not left and attempts and not done:
                    left, failed = failed, []
            raise error
        finally:
            for attempt in attempts:
                attempt.add_done_callback(_discard)
                attempt.cancel()

    async def _greet(self, endpoint: Endpoint) -> GrpcConnection:
        tls = self._tls is not None
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(GrpcConnection, shown(endpoint), tls=tls),
            *endpoint,
            ssl=self._tls,
            server_hostname=endpoint[0] if tls else None,
        )
        try:
            await connection.greeted
            if self.options.username and not self._token:
                await self._log_in(connection)
            answer = await self._ask(connection, messages.RANGE, self._probe)
            self._check(messages.parse_range(answer), shown(endpoint))
        except BaseException:
            connection.abort()
            raise
        return connection

    def _check(self, found: messages.RangeResponse, where: str) -> None:
        if self.cluster_id not in {0, found.cluster_id}:
            raise Unsupported(
                what=f"etcd at {where} is of another cluster than before",
                hint="was it restored from a snapshot? connect() anew",
                nothing_done=True,
            )
        self.cluster_id = found.cluster_id
        self.saw(found.revision)

    async def _ask(
        self, connection: GrpcConnection, path: str, request: bytes
    ) -> bytes:
        try:
            return await _unary(connection, path, request, self._token)
        except GrpcError as exc:
            if not is_stale_token(exc):
                raise
        await self._log_in(connection)
        return await _unary(connection, path, request, self._token)

    async def _log_in(self, connection: GrpcConnection) -> None:
        user, password = self.options.username or "", self.options.password or ""
        request = messages.authenticate(user, password)
        answer = await _unary(connection, messages.AUTHENTICATE, request, [])
        self._token = [("token", messages.parse_token(answer))]


class Stream:
    """A call with many messages both ways."""

    def __init__(self, connection: GrpcConnection, call: Call) -> None:
        self._connection = connection
        self._call = call

    def send(self, message: bytes) -> None:
        self._connection.send(self._call, message)

    def cancel(self) -> None:
        """End the call; ``on_end`` is not called."""
        self._connection.cancel(self._call)


async def _unary(
    connection: GrpcConnection, path: str, request: bytes, metadata: Headers
) -> bytes:
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    answers: list[bytes] = []

    def ended(error: Exception | None) -> None:
        if answered.done():
            return
        if error is None and not answers:
            error = Disconnected("an answer without a message", unsent=False)
        if error is None:
            answered.set_result(answers[0])
        else:
            answered.set_exception(error)

    call = Call(path, metadata, answers.append, ended)
    connection.begin(call, request, last=True)
    try:
        return await answered
    except asyncio.CancelledError:
        connection.cancel(call)
        raise


def _graver(one: Exception, other: Exception) -> Exception:
    # What a retry does not help against (version, certificate, login) is shown first.
    return one if isinstance(one, Unsupported | ssl.SSLError) else other


def _discard(task: asyncio.Task[GrpcConnection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().abort()
