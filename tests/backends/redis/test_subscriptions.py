"""What has to be said so that the server knows the channels; nothing is said twice."""

from __future__ import annotations

import pytest

from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import Heard
from tests.backends.redis.protocols import Talk

pytestmark = pytest.mark.anyio


def unconnected(*needed: bytes) -> RedisConnection:
    heard = Heard()
    return RedisConnection(
        *(Options(), current_event_loop(), ()),
        on_message=heard.message,
        on_reconnect=heard.reconnected,
        channels=needed,
    )


async def test_each_change_is_said_once() -> None:
    link, talk = unconnected(), Talk()
    link._connected(talk.talk)
    for change in (link.subscribe, link.subscribe, link.unsubscribe, link.unsubscribe):
        change(b"a")
    talk.talk.flush()
    assert talk.wire.commands() == [[b"SUBSCRIBE", b"a"], [b"UNSUBSCRIBE", b"a"]]
    await link.aclose()


async def test_optional_subscriptions_follow_the_handshake() -> None:
    link, talk = unconnected(b"own"), Talk()
    for channel in (b"b", b"a", b"c"):
        link.subscribe(channel)
    link.unsubscribe(b"b")
    link._connected(talk.talk)
    talk.talk.flush()
    assert talk.wire.commands() == [[b"SUBSCRIBE", b"a"], [b"SUBSCRIBE", b"c"]]
    await link.aclose()
