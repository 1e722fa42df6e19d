"""A client of an etcd cluster: one connection at a time, to the next member if lost."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TypeVar

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.errors import from_driver, is_stale_token
from aiorwlock_remote.backends.etcd.grpc_channel import (
    OPENED_IN,
    Endpoint,
    GrpcChannel,
    shown,
)
from aiorwlock_remote.backends.etcd.grpc_connection import (
    Call,
    GrpcConnection,
    GrpcError,
    Headers,
    Stream,
)
from aiorwlock_remote.backends.etcd.messages import TxnResponse
from aiorwlock_remote.backends.etcd.options import Options
from aiorwlock_remote.errors import Unsupported

T = TypeVar("T")


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
        start, end = options.range_of(None)
        # Not ``Maintenance.Status``: with logins, that is for the user root alone.
        self._probe = messages.get_range(start, end, 1, keys_only=True)
        self._channel = GrpcChannel(options.endpoints, tls, self._greet)
        self._token: Headers = []

    @property
    def connection(self) -> str:
        """What there is now, and the member to which it was made last."""
        state = "open" if self._channel.is_open else "lost"
        return f"{state} ({self._channel.server})"

    def saw(self, revision: int) -> None:
        """Note a revision that the cluster has reached."""
        self.revision = max(self.revision, revision)

    async def open(self, seconds: float) -> GrpcConnection:
        """Return the connection, a new one if it is lost; raise ``BackendError``.

        ``seconds``: how long to wait for a new one.
        """
        try:
            return await self._channel.open(seconds)
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
            return parse(await self._ask(connection, path, request, limit))
        except TimeoutError as exc:
            # This member, or the one that leads it, may be stopped: ask another one.
            self._channel.drop(connection, "no answer in time")
            raise from_driver(exc, self.options.where) from exc
        except Exception as exc:
            raise from_driver(exc, self.options.where) from exc

    async def transact(self, request: bytes) -> TxnResponse:
        """Carry out a transaction; raise ``BackendError``."""
        found = await self.call(messages.TXN, request, messages.parse_transaction)
        self.saw(found.revision)
        return found

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
        return Stream(connection, Call(path, metadata, on_message, on_end))

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        self._channel.close()

    # ----------------------------------------------------------------------- inside

    async def _greet(self, connection: GrpcConnection, endpoint: Endpoint) -> None:
        if self.options.username and not self._token:
            await self._log_in(connection, OPENED_IN)
        ask = messages.RANGE, self._probe, OPENED_IN
        found = messages.parse_range(await self._ask(connection, *ask))
        self._check(found, shown(endpoint))

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
        self, connection: GrpcConnection, path: str, request: bytes, seconds: float
    ) -> bytes:
        try:
            return await connection.call(path, request, self._token, seconds)
        except GrpcError as exc:
            if not is_stale_token(exc):
                raise
        await self._log_in(connection, seconds)
        return await connection.call(path, request, self._token, seconds)

    async def _log_in(self, connection: GrpcConnection, seconds: float) -> None:
        user, password = self.options.username or "", self.options.password or ""
        request = messages.authenticate(user, password)
        answer = await connection.call(messages.AUTHENTICATE, request, [], seconds)
        self._token = [("token", messages.parse_token(answer))]
