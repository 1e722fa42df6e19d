"""``min_replicas`` when the mark that WAIT asks for is refused."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
from aiorwlock_remote.backends.redis.scripts import LEAVE
from aiorwlock_remote.errors import BackendError


class Answering:
    """Grants, and answers each WAIT with 1; the mark fares as is said."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        for wait in more:
            wait.answered(1)
        call.answered("granted")

    def send_at_once(self, mark: Call[Any], wait: Call[Any]) -> bool:
        assert mark.args[1] == b"{b}.mark"
        if self._mark:
            mark.refused(self._mark, "h:1")
        else:
            mark.answered(b"OK")
        wait.answered(1)
        return True


class AnsweringInOrder:
    """Grants, answers WAIT after that, and counts the marks."""

    marks = 0

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        call.answered("granted")
        for wait in more:
            wait.answered(1)

    def send_at_once(self, mark: Call[Any], wait: Call[Any]) -> bool:
        self.marks += 1
        mark.answered(b"OK")
        wait.answered(1)
        return True


@pytest.mark.parametrize("old", [False, True])
def test_an_earlier_grant_has_a_mark_of_its_own(*, old: bool) -> None:
    """Its write went over another connection, of which WAIT says nothing."""
    link: Any = AnsweringInOrder()
    call: Call[Any] = Call(as_is, (2, b"a", b"b"), LEAVE)
    confirmed: Pending[Any] = ReplicaAcks(link, 1, 1.0, "h:1").confirm(
        call, lambda _: UnackedGrant(lambda error: error, old)
    )
    assert confirmed.result() == "granted"
    assert link.marks == old


@pytest.mark.parametrize("mark", ["", "MOVED 1 h:2", "ASK 1 h:2", "OOM no"])
def test_without_its_mark_wait_says_nothing(mark: str) -> None:
    """The slot was given away: the node's replicas have nothing of the grant."""
    link: Any = Answering(mark)
    replicas = ReplicaAcks(link, 1, 1.0, "h:1")
    call: Call[Any] = Call(as_is, (2, b"a", b"b"), LEAVE)
    confirmed: Pending[Any] = replicas.confirm(
        call, lambda _: UnackedGrant(lambda error: error)
    )
    assert confirmed.done()
    if mark:
        assert isinstance(confirmed.error, BackendError)
    else:
        assert confirmed.result() == "granted"
