"""Adoption: a grant goes from one owner to another."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import Granted, NotHeld, Release, Released
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.ticket import Mode
from tests.core.resource import LEASE, READ, WRITE, OneLock, granted, last, over, up


def test_an_adopted_writer_starts_a_phase() -> None:
    """The mutex record changes, too; lease, requester and time are the adopter's."""
    lock = OneLock()
    lock.ask("w", WRITE)
    before = last(lock)
    reply = lock.do(over("w", "a"))
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.ticket, grant.mode, grant.who.pid) == ("a", WRITE, 7)
    assert (grant.since, grant.expires) == (lock.now, lock.now + 2 * LEASE)
    assert grant.fence == last(lock) > before
    assert lock.holders == ["a"]
    assert lock.seat is not None
    assert (lock.seat.ticket, lock.seat.expires) == ("a", grant.expires)


def test_an_adopted_reader_stays_in_its_phase() -> None:
    """The other readers hold what they held, and no waiter enters."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.ask("w", WRITE)
    before = last(lock)
    reply = lock.do(over("r1", "a"))
    assert isinstance(reply, Granted)
    assert [(g.ticket, g.fence) for g in reply.grants] == [("a", before)]
    assert last(lock) == before
    assert sorted(lock.holders) == ["a", "r2"]
    assert not lock.woken


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_of_two_adopters_one_gets_it(mode: Mode) -> None:
    """The former owner holds no more; repeated adoptions change nothing."""
    lock = OneLock()
    lock.ask("t", mode)
    first = lock.do(over("t", "a"))
    assert granted(first)
    assert lock.do(over("t", "b")) == NotHeld("expired")
    again = lock.do(over("t", "a"))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.grants == first.grants
    assert lock.do(Release("t")) == Released(held=False)
    assert lock.do(over("a", "b")) != NotHeld("expired"), "and so on"
    assert lock.holders == ["b"]


def test_an_adoption_ends_no_phase() -> None:
    """Waiters are called when the adopter leaves, and not before."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.ask("r", READ)
    lock.do(over("w", "a"))
    assert not lock.woken
    lock.release("a")
    assert lock.woken == ["r"]


def test_an_adopted_upgraded_writer_still_passed_the_queue() -> None:
    """The writer that it passed is next, as if there had been no adoption."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("w", WRITE)
    lock.ask("r2", READ)
    assert granted(lock.do(up("r1", "u")))
    assert granted(lock.do(over("u", "a")))
    lock.release("a")
    assert lock.woken == ["w"]


def test_an_adopted_upgrader_does_not_upgrade() -> None:
    """The former owner waited for the upgrade; readers may join again."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    lock.do(up("r1", "u"))
    lock.ask("r3", READ)
    assert granted(lock.do(over("r1", "a")))
    assert lock.woken == ["r3"]
    assert lock.do(up("r1", "u")) == NotHeld("expired")


def test_a_voided_grant_is_not_adopted() -> None:
    """A voided grant is not adopted, with or without a foreign record."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.seat = None
    assert lock.do(over("w", "a")) == NotHeld("forced")
    assert lock.holders == []
    lock.seat = MutexRecord("thief,5")
    assert lock.do(over("w", "a")) == NotHeld("forced")
    assert lock.seat == MutexRecord("thief,5")
