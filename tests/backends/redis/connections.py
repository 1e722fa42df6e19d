"""Links of tests: opened on the running loop, closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.event_loop import SystemClock, current_event_loop
from tests.backends.redis.some_scripts import BOTH
from tests.servers.redis import RedisServer

CLOCK_ONLY: Any = SimpleNamespace(clock=SystemClock())
"""The event loop of the locks, of which a renewal channel needs the clock."""


class Heard:
    """What a connection reported: messages, and reconnections."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.reconnects: int = 0

    def message(self, channel: bytes, payload: bytes) -> None:
        self.messages.append((channel, payload))

    def reconnected(self) -> None:
        self.reconnects += 1


@asynccontextmanager
async def linked(
    url: str,
    heard: Heard | None = None,
    *,
    channels: Iterable[bytes] = (),
    connect_timeout: float = 5.0,
    command_timeout: float = 5.0,
) -> AsyncIterator[RedisConnection]:
    heard = heard or Heard()
    options = options_of(parse(url), connect_timeout=connect_timeout)
    link = RedisConnection(
        replace(options, command_timeout=command_timeout),
        current_event_loop(),
        BOTH,
        on_message=heard.message,
        on_reconnect=heard.reconnected,
        channels=channels,
    )
    await link.open()
    try:
        yield link
    finally:
        await link.aclose()


def renewal_channel(
    url: str,
    connect_timeout: float = 5.0,
    **changes: Any,  # noqa: ANN401 - as `replace`
) -> ThreadLoopChannel:
    """The channel of the lease keeper; ``changes`` are other options than the URL's."""
    options = options_of(parse(url), connect_timeout=connect_timeout)
    return ThreadLoopChannel(replace(options, **changes), CLOCK_ONLY, BOTH)


async def settled(pending: Pending[Any]) -> object:
    """The answer, or the error it failed with."""
    done = anyio.Event()
    pending.add_done_callback(lambda _: done.set())
    with anyio.fail_after(20):
        await done.wait()
    return pending.error or pending.result()


async def eventually(
    condition: Callable[[], bool], what: str, seconds: float = 60.0
) -> None:
    """Wait for what gives no event."""
    with anyio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)
    assert condition(), what


async def killed(server: RedisServer, link: RedisConnection) -> None:
    """Kill the server; return when the link has noticed."""
    server.kill()
    await eventually(lambda: link._protocol is None, "the loss is noticed")
