"""Senseless replies about a mutex set: reported as such, not as our own defect."""

from __future__ import annotations

import pytest

from aiorwlock_remote.backends.redis.connection.protocol import Raw
from aiorwlock_remote.backends.redis.recipes import (
    MutexSets,
    decode_ask,
    decode_member,
    decode_release,
)
from aiorwlock_remote.core.commands import Release, Renew
from aiorwlock_remote.core.mutex_set import TakeRequest
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import StoreSettings

NONSENSE: list[Raw] = [
    None,
    7,
    b"OK",
    [],
    [[], None],
    [[], [None]],
    [[], [b"x", b"y"]],
    [[], [0, b"odd"]],
    [[], [0]],
]
ASKS = [TakeRequest("", "t", 1)]
RENEW = Renew((("t", 1), ("u", 1)))


@pytest.mark.parametrize("answer", NONSENSE)
def test_of_a_member(answer: Raw) -> None:
    for command in (RENEW, Release("t")):
        with pytest.raises(BackendError, match="cannot be read"):
            decode_member(command, answer)
    with pytest.raises(BackendError, match="cannot be read"):
        decode_release(answer)


@pytest.mark.parametrize("answer", [*NONSENSE[:3], *NONSENSE[4:7], [[], [1, 2]]])
def test_of_who_asks(answer: Raw) -> None:
    with pytest.raises(BackendError, match="cannot be read"):
        decode_ask(ASKS, answer)


@pytest.mark.parametrize("answer", [None, 7, [], [None], [[7]]])
def test_of_whom_to_ring(answer: Raw) -> None:
    sets = MutexSets(0, StoreSettings("client"), cluster=False)
    with pytest.raises(BackendError, match="cannot be read"):
        sets.waking(bool)(answer)
