"""Renewals where a user's client opens the connections, which only asyncio can do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Call, as_is
from aiorwlock_remote.backends.redis.connection.connecting import Connector, Dial
from aiorwlock_remote.backends.redis.connection.protocol import Conversation
from aiorwlock_remote.backends.redis.connection.script import Request
from aiorwlock_remote.backends.redis.errors import of_failure
from aiorwlock_remote.backends.redis.lines import Endpoint
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Host


class LoopOfItsOwn:
    """A connection on an event loop that runs in the keeper's thread, when needed.

    Opens at the first use, and again at the next use after anything went wrong: also
    when the server was silent for ``command_timeout``, as there may be time left to
    renew elsewhere.
    """

    def __init__(self, options: Options, host: Host, dial: Dial) -> None:
        """Unconnected."""
        self._options = options
        self._connector = Connector(options, host, ALL, self, dial)
        self._runner: asyncio.Runner | None = None
        self._talk: Conversation | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit: asyncio.Timeout | None = None
        self._given_up = False

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._exchange(batch, timeout))

    def give_up(self) -> None:
        """As ``Batches``: the time is up."""
        self._given_up = True
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

    async def _exchange(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        self._loop = asyncio.get_running_loop()
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        try:
            async with asyncio.timeout(0 if self._given_up else timeout) as self._limit:
                talk = self._talk
                if talk is None or not talk.alive:
                    self._talk = talk = await self._connector.connect(())
                async with asyncio.timeout(self._options.command_timeout):
                    talk.send_all(calls)
                    for call in calls:
                        with suppress(BackendError, IllegalCommand):
                            await call
        except TimeoutError as exc:
            await self._drop()
            raise of_failure(exc, self._options.where) from exc
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

    async def _drop(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.wire.aclose()


class UsersLoop:
    """Renews over the store's own connection: a loop that is blocked renews nothing."""

    def __init__(self, options: Options, host: Host, endpoint: Endpoint) -> None:
        """Opens nothing."""
        self._where = options.where
        self._host = host
        self._endpoint = endpoint
        self._answered = threading.Event()
        self._given_up = False

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``."""
        answers: list[Pending[Any]] = []
        self._answered = answered = threading.Event()
        left, given_up = len(batch), False

        def told(_: Pending[Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                answered.set()

        def send() -> None:
            # A late one might renew what was taken for lost.
            if given_up or self._given_up:
                return
            answers.extend(
                self._endpoint.run(script, args, as_is) for script, args in batch
            )
            for answer in answers:
                answer.then(told)

        self._host.call_soon(send)
        if self._given_up or not answered.wait(timeout) or self._given_up:
            given_up = True
            raise BackendUnavailable(
                what=f"{self._where}: not renewed in {timeout:.3g} s",
                hint="the event loop was busy, or the server did not answer",
            )
        return [answer.error or answer.result() for answer in answers]

    def give_up(self) -> None:
        """As ``Batches``."""
        self._given_up = True
        self._answered.set()

    def close(self) -> None:
        """The connection is the store's."""
