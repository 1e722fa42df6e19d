"""A conversation over nothing, for tests of what is said."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    RespProtocol,
    as_is,
)
from tests.backends.redis.fake_transport import RecordingHandler, RecordingWire
from tests.backends.redis.some_scripts import BOTH, PUSH


class Talk:
    """A conversation over nothing."""

    def __init__(self) -> None:
        self.handler = RecordingHandler()
        self.wire = RecordingWire()
        self.talk = RespProtocol("h:1", BOTH, self.handler)
        self.talk.transport = self.wire

    def say(self, *args: str | int) -> Call[Any]:
        return self.send(Call(as_is, args))

    def run(self, key: str, value: str = "x") -> Call[int]:
        return self.send(Call(int, (1, key, value), PUSH))

    def send(self, call: Call[Any]) -> Call[Any]:
        self.talk.send(call, call.packed())
        return call


@pytest.fixture
def talk() -> Talk:
    return Talk()
