"""Renewals over the store's own connection, where the keeper has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.calls import Call, as_is
from aiorwlock_remote.backends.redis.connection.script import Request
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import EventLoop


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
