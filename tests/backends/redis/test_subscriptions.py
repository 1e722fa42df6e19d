"""What has to be said so that the server knows the channels; nothing is said twice."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connection.subscriptions import Subscriptions


def said(calls: list[Call[None]]) -> list[object]:
    return [call.args for call in calls]


def test_each_change_is_said_once() -> None:
    channels = Subscriptions()
    assert said([*channels.add(b"a")]) == [("SUBSCRIBE", b"a")]
    assert channels.add(b"a") == []
    assert said([*channels.remove(b"a")]) == [("UNSUBSCRIBE", b"a")]
    assert channels.remove(b"a") == []


def test_changes_since_the_greeting() -> None:
    channels = Subscriptions()
    for channel in (b"b", b"a"):
        channels.add(channel)
    assert channels.greet() == (b"b", b"a")
    assert channels.changed() == []
    channels.remove(b"b")
    channels.add(b"c")
    assert said([*channels.changed()]) == [("SUBSCRIBE", b"c"), ("UNSUBSCRIBE", b"b")]
