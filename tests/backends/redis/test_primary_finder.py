"""Which of the Sentinels is believed, by a clock that stands still."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aiorwlock_remote.backends.redis import sentinel
from aiorwlock_remote.backends.redis.addresses import DnsResolver
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    Request,
    RespProtocol,
)
from aiorwlock_remote.backends.redis.connection.renewal_channels import KeeperChannel
from aiorwlock_remote.backends.redis.sentinel import (
    CONFIRMATION_SECONDS,
    EPOCH_MEMORY_SECONDS,
    UNKNOWN_EPOCH,
    PrimaryFinder,
    Sentinels,
)
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import Clock
from tests.fixed_clock import StandingClock
from tests.servers.strangers import stranger

A, B = ("a", 1), ("b", 1)
SENTINELS = Sentinels("shop", (("s1", 1), ("s2", 1), ("s3", 1)))
Answer = tuple[int, tuple[str, int]] | None
"""The failover that a Sentinel knows of and the primary since; None: it is silent."""


class Asked:
    """A finder, and what the three Sentinels answer it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = StandingClock()
        self.finder = PrimaryFinder(SENTINELS, self.clock)
        self.answers: Sequence[Answer] = [(1, A)] * 3
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens before the answers come."""
        self.times = 0
        monkeypatch.setattr(sentinel, "ask_sentinels", self._ask)

    def says(self, *answers: Answer) -> str:
        """The host that is found."""
        self.answers = answers
        self.clock.seconds += 0.01
        return self.finder.find(1).server[0]

    def _ask(
        self,
        sentinels: Sentinels,
        clock: Clock,
        timeout: float,
        lookups: DnsResolver,
        enough: int,
    ) -> dict[Any, Any]:
        del clock, timeout, lookups, enough
        self.times += 1
        by_server = dict(zip(sentinels.servers, self.answers, strict=True))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        if not any(by_server.values()):
            raise BackendUnavailable(what="silent")
        return {server: answer for server, answer in by_server.items() if answer}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_the_latest_failover_counts_whoever_knows_of_it(asked: Asked) -> None:
    """Each switch is reported once, and counted before that."""
    switches: list[int] = []
    finder = asked.finder
    finder.on_switch(lambda: switches.append(finder.switches))
    assert asked.says((1, A), (1, A), (1, A)) == "a"
    assert asked.says((1, A), (2, B), (1, A)) == "b"
    assert asked.says((2, B), (2, B), (2, B)) == "b"
    assert asked.says((3, A), None, None) == "a"
    assert switches == [1, 2]
    assert finder.known == A


def test_a_sentinel_that_is_behind_sends_nobody_back(asked: Asked) -> None:
    """It was cut off together with the old primary, say, which goes on."""
    asked.says((2, B), (2, B), (2, B))
    asked.clock.seconds += 2 * EPOCH_MEMORY_SECONDS
    with pytest.raises(BackendUnavailable, match="know of no failover to b:1") as said:
        asked.says((1, A), None, None)
    assert said.value.nothing_done
    assert (asked.finder.known, asked.finder.switches) == (B, 0)


def test_most_sentinels_may_be_reset(asked: Asked) -> None:
    """Then they know of no failover. A moment after one that is not known yet."""
    asked.says((2, B), (2, B), (2, B))
    with pytest.raises(BackendUnavailable):
        asked.says((1, A), (1, A), None)
    asked.clock.seconds += EPOCH_MEMORY_SECONDS
    assert asked.says((0, A), (0, A), None) == "a"
    assert asked.finder.switches == 1


def test_an_answer_that_took_long_is_behind(asked: Asked) -> None:
    """Asked before the failover, answered after somebody else had learnt of it."""
    asked.says((1, A), (1, A), (1, A))

    def failover() -> None:
        asked.says((2, B), (2, B), (2, B))
        asked.clock.seconds += 2 * EPOCH_MEMORY_SECONDS

    asked.answers, asked.meanwhile = [(1, A)] * 3, failover
    with pytest.raises(BackendUnavailable):
        asked.finder.find(1)
    assert asked.finder.known == B


@pytest.mark.parametrize("epoch", [7, UNKNOWN_EPOCH])
def test_another_name_of_one_server_is_no_switch(asked: Asked, epoch: int) -> None:
    """Some say ``redis1``, others its address; unless most say what is new."""
    assert asked.says((epoch, A), (epoch, A), (epoch, B)) == "a"
    assert asked.says(None, None, (epoch, B)) == "b"
    assert asked.finder.switches == 0
    assert asked.says((epoch, B), (epoch, A), (epoch, B)) == "b"
    assert asked.finder.switches == 1


def test_the_former_primary_is_known_for_a_while(asked: Asked) -> None:
    asked.says((1, A), (1, A), (1, A))
    assert not asked.finder.was_left(A)
    asked.says((2, B), (2, B), (2, B))
    assert asked.finder.was_left(A)
    assert not asked.finder.was_left(B)
    asked.clock.seconds += EPOCH_MEMORY_SECONDS + 1
    assert not asked.finder.was_left(A)  # made the primary again, or its name is B


def test_confirmed_once_a_second(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """A Sentinel that does not answer costs no more, and is logged once."""
    asked.finder.confirm(1)
    asked.clock.seconds += 0.9 * CONFIRMATION_SECONDS
    asked.finder.confirm(1)
    assert asked.times == 1
    with caplog.at_level(logging.WARNING):
        for answers in ([None] * 3, [None] * 3, [(1, A)] * 3, [None] * 3):
            asked.answers = answers
            asked.clock.seconds += CONFIRMATION_SECONDS
            asked.finder.confirm(1)
            asked.finder.confirm(1)
    assert asked.times == 5
    assert caplog.messages == ["sentinels_away primary=shop error=silent"] * 2


def test_a_sentinel_that_knows_too_few_others() -> None:
    """redis-py's ``min_other_sentinels``."""
    master = b"*4\r\n$12\r\nconfig-epoch\r\n$1\r\n1\r\n"
    master += b"$19\r\nnum-other-sentinels\r\n$1\r\n1\r\n"
    with stranger(b"*2\r\n$1\r\na\r\n$1\r\n1\r\n" + master) as port:
        asks = Sentinels("shop", (("127.0.0.1", port),), min_others=1)
        assert PrimaryFinder(asks, StandingClock()).find(5).server == A
        asks = Sentinels("shop", (("127.0.0.1", port),), min_others=2)
        with pytest.raises(BackendUnavailable, match="knows 1 others"):
            PrimaryFinder(asks, StandingClock()).find(5)


class Batches:
    """What renewals go over, and what happens before they are answered."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.did: list[str] = []

    def open(self, timeout: float) -> None:
        assert timeout > 0

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        assert timeout > 0
        self.did.append("run")
        self.meanwhile()
        return [b"renewed"] * len(batch)

    def give_up(self) -> None:
        self.did.append("give up")

    def abort(self) -> None:
        self.did.append("hang up")

    def close(self) -> None:
        self.did.append("close")


def test_renewals_leave_a_former_primary(asked: Asked) -> None:
    """Asked before the batch; the connection is made anew."""
    inner: Any = Batches()
    batch: Any = [("script", ())]
    batches = KeeperChannel(inner, inner, asked.clock, asked.finder)
    assert batches.run_many(batch, 9) == [b"renewed"]
    asked.answers = [(2, B)] * 3
    assert batches.run_many(batch, 9) == [b"renewed"]
    assert inner.did == ["run"] * 2  # confirmed less than a second ago
    asked.clock.seconds += CONFIRMATION_SECONDS
    assert batches.run_many(batch, 9) == [b"renewed"]
    assert inner.did[2:] == ["close", "run"]


def test_replies_of_a_former_primary_are_not_believed(asked: Asked) -> None:
    """Another thread learns of the failover while the batch is under way."""
    inner: Any = Batches()
    batches = KeeperChannel(inner, inner, asked.clock, asked.finder)
    asked.says((1, A), (1, A), (1, A))
    inner.meanwhile = lambda: asked.says((2, B), (2, B), (2, B))
    with pytest.raises(BackendUnavailable, match="another server") as said:
        batches.run_many([("script", ())], 9)  # type: ignore[list-item]
    assert not said.value.nothing_done
    assert inner.did == ["run", "hang up"]  # it may not answer at all


class Ended:
    """Whoever holds a conversation, and the wire under it."""

    def __init__(self) -> None:
        self.error: BackendError | None = None
        self.open = True

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        assert not unsent
        self.error = error

    def write(self, data: bytes) -> None:
        assert data

    def abort(self) -> None:
        self.open = False


def test_a_grant_of_a_former_primary_is_not_believed(asked: Asked) -> None:
    """The keeper's thread learns of it first, before the loop is notified."""
    asked.says((1, A), (1, A), (1, A))
    finder, holder, granted = asked.finder, Ended(), Call(int, ("GRANT",))
    talk = RespProtocol("here", (), holder, lambda: finder.switches == 0)  # type: ignore[arg-type]
    talk.transport = holder  # type: ignore[assignment]
    talk.send_all([Call(int, ("FIRST",)), granted])
    talk.received(b":1\r\n")
    asked.says((2, B), (2, B), (2, B))
    talk.received(b":2\r\n")
    assert isinstance(granted.error, BackendUnavailable)
    assert not granted.error.nothing_done  # whether it was carried out is not known
    assert holder.error is not None
    assert not holder.open
