"""What has to be said so that the server knows the channels; nothing is said twice."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.connection.connection import Subscriptions
from aiorwlock_remote.backends.redis.connection.protocol import Call


def said(calls: list[Call[None]]) -> list[object]:
    return [call.args for call in calls]


def test_each_change_is_said_once() -> None:
    channels = Subscriptions()
    assert said([*channels.add(b"a")]) == [("SUBSCRIBE", b"a")]
    assert channels.add(b"a") == []
    assert said([*channels.remove(b"a")]) == [("UNSUBSCRIBE", b"a")]
    assert channels.remove(b"a") == []


def test_those_that_are_not_needed_are_asked_for_after_the_greeting() -> None:
    channels = Subscriptions([b"own"])
    for channel in (b"b", b"a", b"c"):
        channels.add(channel)
    channels.remove(b"b")
    assert channels.needed == (b"own",)
    assert said([*channels.others()]) == [("SUBSCRIBE", b"a"), ("SUBSCRIBE", b"c")]
