"""Renewals where a user's client opens the connection, which only asyncio can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from aiorwlock_remote.backends.redis.connection.calls import Call, as_is
from aiorwlock_remote.backends.redis.connection.connector import Connector, Dial
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connection.script import Request
from aiorwlock_remote.backends.redis.connection.stream_transport import StreamTransport
from aiorwlock_remote.backends.redis.errors import of_failure
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import BackendError
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
            raise of_failure(exc, self._options.where) from exc

    async def _drop(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.wire.aclose()


def _hung_up(talk: RespProtocol) -> bool:
    return isinstance(talk.wire, StreamTransport) and talk.wire.hung_up
