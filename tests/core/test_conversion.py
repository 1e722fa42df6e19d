"""Downgrade and upgrade."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    BARRED,
    HELD,
    Command,
    Conflict,
    ForceRelease,
    Granted,
    IllegalCommand,
    NotHeld,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.ticket import holder_of
from tests.core.resource import (
    MS,
    READ,
    SECOND,
    WRITE,
    OneLock,
    down,
    granted,
    last,
    over,
    up,
)


def test_a_downgrade_starts_a_phase_and_lets_readers_join() -> None:
    """Waiting readers join; the writer behind them stays out."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.ask("r", READ)
    lock.ask("w2", WRITE)
    before = last(lock)
    reply = lock.do(down("w", "d"))
    assert isinstance(reply, Granted)
    assert [(g.ticket, g.mode) for g in reply.grants] == [("d", READ)]
    assert last(lock) > before
    assert lock.woken == ["r"]
    assert granted(lock.ask("r", READ))
    assert not granted(lock.ask("r2", READ))
    assert lock.holders == ["d", "r"]


def test_moves_are_idempotent() -> None:
    """A repeated command finds the grant that the first one made."""
    lock = OneLock()
    lock.ask("w", WRITE)
    first = lock.do(down("w", "d"))
    second = lock.do(down("w", "d"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.grants == second.grants
    third = lock.do(up("d", "u"))
    fourth = lock.do(up("d", "u"))
    assert isinstance(third, Granted)
    assert isinstance(fourth, Granted)
    assert third.grants == fourth.grants
    assert third.grants[0].fence > first.grants[0].fence


@pytest.mark.parametrize(
    "command", [down("gone", "x"), up("gone", "x"), over("gone", "x")]
)
def test_only_a_holder_moves(command: Command) -> None:
    """A client that holds no more learns why."""
    lock = OneLock()
    assert lock.do(command) == NotHeld("forced"), "its record is gone"
    lock.ask("other", WRITE)
    assert lock.do(command) == NotHeld("expired")


def test_an_illegal_move_changes_nothing() -> None:
    """A reader cannot be downgraded, a writer not upgraded."""
    lock = OneLock()
    lock.ask("w", WRITE)
    before = lock.record, lock.seat
    with pytest.raises(IllegalCommand):
        lock.do(up("w", "x"))
    assert (lock.record, lock.seat) == before
    lock.release("w")
    lock.ask("r", READ)
    before = lock.record, lock.seat
    with pytest.raises(IllegalCommand):
        lock.do(down("r", "x"))
    assert (lock.record, lock.seat) == before


def test_one_reader_at_most_waits_to_be_upgraded() -> None:
    """Two upgraders would wait for each other."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    assert isinstance(lock.do(up("r1", "u")), Waiting)
    assert lock.do(up("r2", "v")) == Conflict()
    assert isinstance(lock.do(up("r1", "u")), Waiting)
    lock.release("r2")
    assert lock.woken == ["r1"]
    assert granted(lock.do(up("r1", "u")))
    assert lock.holders == ["u"]


def test_an_upgrade_that_may_not_wait_is_refused() -> None:
    """A refused reader holds on, and keeps no other out."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    refused = lock.do(up("r1", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == HELD
    assert granted(lock.ask("r3", READ))


def test_an_upgrader_closes_joining() -> None:
    """A waiting upgrader closes the phase as a waiting writer does."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.do(up("r1", "u"))
    assert not granted(lock.ask("r3", READ))
    assert not granted(lock.attempt("r4", READ))


@pytest.mark.parametrize("how", ["release", "force", "withdraw", "give up"])
def test_joining_reopens_when_the_upgrader_goes(how: str) -> None:
    """Waiting readers are called at once, without a poll."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.do(up("r1", "u"))
    lock.ask("r3", READ)
    commands: dict[str, Command] = {
        "force": ForceRelease(holder_of("r1"), last(lock)),
        "withdraw": Withdraw("r1", READ, ("r1", "u"), keep=True),
        "give up": Withdraw("r1", READ, keep=True, upgrader="r1"),
    }
    if how == "release":
        lock.release("r1")
    else:
        lock.do(commands[how])
    assert lock.woken == ["r3"]
    assert granted(lock.ask("r3", READ))


def test_the_last_reader_goes_while_it_waits_to_be_upgraded() -> None:
    """The resource is free, and the reader it kept out is called."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.do(up("r1", "u"))
    lock.ask("r3", READ)
    lock.release("r2")
    assert lock.woken == ["r1"]
    lock.release("r1")
    assert lock.woken == ["r3"]


def test_an_upgrader_that_died_is_forgotten() -> None:
    """Its slot lives as long as a queue entry."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.do(up("r1", "u"))
    lock.wait(5 * SECOND)
    assert granted(lock.ask("r3", READ))


def test_no_upgrade_during_a_lock_delay() -> None:
    """The reader whose lease ran out may still be reading."""
    lock = OneLock()
    lock.ask("stays", READ)
    lock.ask("lost", READ, lease=SECOND, lock_delay=3 * SECOND)
    end = lock.now + 4 * SECOND
    lock.wait(SECOND)
    refused = lock.do(up("stays", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == BARRED
    lock.now = end - 2 * MS
    assert isinstance(lock.do(up("stays", "u")), Waiting)
    assert granted(lock.do(up("stays", "u")))
    assert lock.now == end


def test_admitted_readers_go_before_an_upgrade() -> None:
    """An upgrade that goes first would lock them out again and again."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.ask("r", READ)
    lock.do(down("w", "d"))
    assert isinstance(lock.do(up("d", "u")), Waiting)
    assert granted(lock.ask("r", READ))
    lock.release("r")
    assert lock.woken == ["d"]
    assert granted(lock.do(up("d", "u")))


def test_a_writer_that_was_passed_by_an_upgrade_is_next() -> None:
    """Readers upgrading in turn would starve it otherwise."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("w", WRITE)
    lock.ask("r2", READ)
    assert granted(lock.do(up("r1", "u")))
    lock.release("u")
    assert lock.woken == ["w"]
    assert not granted(lock.ask("r2", READ))
    assert granted(lock.ask("w", WRITE))
    lock.release("w")
    assert lock.woken == ["r2"]
