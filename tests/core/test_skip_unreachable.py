"""Clients that are called but cannot be reached; and which holders are shown."""

from __future__ import annotations

from aiorwlock_remote.core.commands import Acquire, Claim, Release, Waiting
from aiorwlock_remote.core.doorman import MAX_SHOWN_HOLDERS, MutexRecord, Requester
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.transition import Step, skip_unreachable, transition
from tests.core.resource import READ, SECOND, WALL, WRITE, OneLock, ask


def freed(lock: OneLock, holder: str) -> Step:
    """Return the step in which the holder leaves."""
    lock.now += 1
    command = Release(holder)
    return transition(lock.record, lock.seat, command, lock.now, WALL + lock.now)


def late(step: Step, now: int) -> list[str]:
    return [p.client_id for p in step.record.queue if p.missed_claim(now)]


def test_a_writer_that_is_gone_is_passed_over_at_once() -> None:
    lock = OneLock()
    for client_id in ("w1", "w2", "w3"):
        lock.ask(client_id, WRITE)
    step = freed(lock, "w1")
    assert step.wakes == ("w2",)
    step = skip_unreachable(step, {"w2"}, lock.now, lock.now)
    assert step.wakes == ("w3",)
    assert late(step, lock.now) == ["w2"]
    assert [p.client_id for p in step.record.queue] == ["w2", "w3"], (
        "it keeps its order"
    )
    step = skip_unreachable(step, ("w3",), lock.now, lock.now)
    assert step.wakes == ()
    assert late(step, lock.now) == ["w2", "w3"]


def test_readers_that_are_gone_hold_up_nobody() -> None:
    lock = OneLock()
    lock.ask("w1", WRITE)
    for client_id in ("r1", "r2"):
        lock.ask(client_id, READ)
    lock.ask("w2", WRITE)
    step = freed(lock, "w1")
    assert step.wakes == ("r1", "r2")
    some = skip_unreachable(step, {"r1"}, lock.now, lock.now)
    assert some.wakes == (), "the other one has its window"
    assert skip_unreachable(step, {"r1", "r2"}, lock.now, lock.now).wakes == ("w2",)


def test_a_place_that_was_not_called_is_left_alone() -> None:
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("w2", WRITE)
    lock.ask("w3", WRITE)
    step = skip_unreachable(freed(lock, "w1"), {"w3"}, lock.now, lock.now)
    assert late(step, lock.now) == []


def test_the_answer_stays_as_it_was() -> None:
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("w2", WRITE)
    step = freed(lock, "w1")
    after = skip_unreachable(step, {"w2"}, lock.now, lock.now)
    assert (after.reply, after.seat) == (step.reply, step.seat)


def test_the_readers_shown_are_those_that_end_first() -> None:
    lock = OneLock()
    for number in range(MAX_SHOWN_HOLDERS + 2):
        lock.ask("client", READ, f"r{number}", lease=(20 - number) * SECOND)
    lock.ask("client", READ, "never", lease=None)
    reply = lock.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert lock.record is not None
    first = sorted(lock.record.grants, key=lambda g: g.expires or WALL)[
        :MAX_SHOWN_HOLDERS
    ]
    assert reply.holders == tuple(f"read {g.holder} ?" for g in first)
    assert not reply.foreign


def test_a_foreign_holder_is_recognised() -> None:
    lock = OneLock()
    lock.seat = MutexRecord("thief,5")
    reply = lock.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert reply.foreign
    assert reply.holders == (f"foreign {holder_of('thief')}",)


def test_a_reason_is_not_taken_for_a_foreigner() -> None:
    """Texts are for people: a holder of ours may have any words in its reason."""
    lock = OneLock()
    who = Requester("foreign ", 1, "task", "foreign 0123456789ab")
    lock.do(Acquire((Claim("t", 20 * SECOND, who),), WRITE))
    reply = lock.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert not reply.foreign
