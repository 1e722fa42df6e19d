"""Hints among the clients of another store, by ``NOTIFY`` (``wake=postgresql://…``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import random
from typing import Any

import anyio

from aiorwlock_remote._util.driver_loop import driver_loop_for, submit_and_wait
from aiorwlock_remote.backends.postgresql.driver import (
    ASYNCPG,
    Connection,
    PostgresqlDriver,
)
from aiorwlock_remote.backends.postgresql.listener import (
    CHANNEL_PREFIX,
    CHECK_INTERVAL,
    is_pooled,
)
from aiorwlock_remote.backends.postgresql.options import Options, options_of
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.driver.pool import CLOSE_TIMEOUT
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import EventLoop, StoreBase, StoreSettings


class PostgresqlHints:
    """Hint channel: one connection, which listens and notifies. It needs no table.

    For use in the store's loop; the coroutines, but ``aclose``, run in the driver's.
    """

    def __init__(
        self, options: Options, loop: EventLoop, client_id: str, store: StoreBase
    ) -> None:
        """Begin to connect. Hints to ``client_id``, and outages, go to ``store``."""
        self._driver = PostgresqlDriver(options.listen_at or options)
        self._store = store
        self._own_channel = CHANNEL_PREFIX + client_id
        self._wanted = asyncio.Event()
        self._unsent: list[tuple[str, str]] = []
        self._connected = False
        self._attempts = 0
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._driver_loop = driver_loop_for(loop, "postgresql hints")
        self._driver_loop.spawn(self._run)

    @property
    def where(self) -> str:
        return self._driver.options.where

    def hint(self, text: str, client_ids: Sequence[str]) -> None:
        hints = [(CHANNEL_PREFIX + one, text) for one in client_ids]
        self._driver_loop.begin(partial(self._send, hints))

    def check(self) -> None:
        # No client takes this for a hint.
        self._driver_loop.begin(partial(self._send, [(self._own_channel, "")]))

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await submit_and_wait(self._driver_loop, self._end)
            await self._driver_loop.stop()

    async def _send(self, hints: list[tuple[str, str]]) -> None:
        # A hint that has to wait for a connection is worth nothing.
        if self._connected:
            self._unsent += hints
            self._wanted.set()
        elif self._task is not None and self._task.cancelled() and not self._ended:
            self._task = None
            self._driver_loop.spawn(self._run)

    async def _end(self) -> None:
        self._ended = True
        task = self._task
        if task is None:
            return
        if self._connected:  # the last releases may just have made hints
            self._wanted.set()
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        while not self._ended:
            try:
                await self._carry_hints()
            except asyncio.CancelledError:
                # By a program that cancels all of its tasks and goes on: the next hint
                # starts another one (test_a_program_that_cancels_all_its_tasks).
                if not self._ended:
                    lost = BackendUnavailable(what=f"{self.where}: cancelled")
                    self._driver_loop.tell(self._store.channel_changed, lost)
                raise
            except Exception as exc:  # noqa: BLE001 - asyncpg's own mistakes, too
                error = self._driver.map_connect_error(exc)
                self._driver_loop.tell(self._store.channel_changed, error)
                await asyncio.sleep(back_off(self._attempts, random()))
                self._attempts += 1

    def _terminated(self, _: object) -> None:
        self._wanted.set()

    async def _carry_hints(self) -> None:
        limit = self._driver.options.call_timeout
        connection: Connection = await ASYNCPG.connect(**self._driver.arguments())
        try:
            if await is_pooled(connection):
                raise ConfigurationError(
                    what=f"wake: {self.where} is a pooler: sessions behind it change",
                    hint="name the server itself, or add ?listen= with its URL",
                )
            connection.add_termination_listener(self._terminated)
            async with asyncio.timeout(limit):
                for name in ("stay", "hints_are_no_data"):
                    await connection.execute(statement(name))
                await connection.add_listener(self._own_channel, self._notified)
            self._connected, self._attempts = True, 0
            self._driver_loop.tell(self._store.channel_changed, None)
            while not self._ended or self._unsent:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_INTERVAL):
                        await self._wanted.wait()
                self._wanted.clear()
                hints, self._unsent = self._unsent, []
                channels = [channel for channel, _ in hints]
                payloads = [payload for _, payload in hints]
                # Without a hint this shows whether the server still answers.
                await connection.fetch(
                    statement("hints"), channels, payloads, timeout=limit
                )
        finally:
            self._connected = False
            self._unsent.clear()
            # ``close`` would wait for the server, which may be silent.
            connection.terminate()

    def _notified(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        self._driver_loop.tell(self._store.hinted, payload)


def open_channel(
    address: Address, loop: EventLoop, store: StoreBase, settings: StoreSettings
) -> PostgresqlHints:
    """Return a hint channel at the server of a URL, see ``ports.ChannelOpener``."""
    options = options_of(address, settings.connect_timeout)
    if not options.listen:
        raise ConfigurationError(what="wake: listen=no, and so no hint would come")
    return PostgresqlHints(options, loop, settings.client_id, store)
