"""Release, and the acquires it carries."""

from __future__ import annotations

from aiorwlock_remote.core.commands import (
    CLAIM_WINDOW,
    Granted,
    Released,
    Waiting,
)
from aiorwlock_remote.core.doorman import MAX_LOCAL_TURNS
from tests.core.resource import READ, WRITE, OneLock, ask, granted


def answers(reply: object) -> list[type]:
    """Return the replies to a release's carried acquires."""
    assert isinstance(reply, Released)
    return [type(answer) for answer in reply.then]


def test_release_compares_the_ticket() -> None:
    """A release compares the ticket and the mode, if one is named."""
    lock = OneLock()
    lock.ask("w", WRITE)
    for reply in (lock.release("x"), lock.release("w", mode=READ)):
        assert isinstance(reply, Released)
        assert not reply.held
    assert lock.holders == ["w"]
    reply = lock.release("w", mode=WRITE)
    assert isinstance(reply, Released)
    assert reply.held
    lock.ask("w2", WRITE)
    again = lock.release("w")
    assert isinstance(again, Released)
    assert not again.held
    assert lock.holders == ["w2"]


def test_a_release_carries_the_next_acquire() -> None:
    """A client alone needs one request for each turn."""
    lock = OneLock()
    lock.ask("g", WRITE, "a", more=1)
    reply = lock.release("a", ask("g", WRITE, "b"))
    assert answers(reply) == [Granted]
    assert (lock.holders, lock.queue) == (["b"], [])


def test_an_acquire_carried_by_a_release_overtakes_nobody() -> None:
    """The other client is called, and the reply says how long it is awaited."""
    lock = OneLock()
    lock.ask("g", WRITE, "a")
    lock.ask("h", WRITE)
    reply = lock.release("a", ask("g", WRITE, "b"))
    assert isinstance(reply, Released)
    (waiting,) = reply.then
    assert isinstance(waiting, Waiting)
    assert (waiting.ahead, waiting.retry_after) == (1, CLAIM_WINDOW)
    assert lock.woken == ["h"]


def test_answers_come_in_the_order_asked() -> None:
    """Waiting readers enter; the writer beside them waits."""
    lock = OneLock()
    lock.ask("g", WRITE, "a")
    lock.ask("g", READ, "r")
    lock.ask("g", WRITE, "b")
    then = ask("g", READ, "r"), ask("g", WRITE, "b")
    assert answers(lock.release("a", *then)) == [Granted, Waiting]
    assert lock.holders == ["r"]


def test_after_a_hundred_turns_the_seat_is_vacated_once() -> None:
    """Foreign pollers get a chance; the client is called back at once."""
    lock = OneLock()
    lock.ask("g", WRITE, "t0")
    for turn in range(MAX_LOCAL_TURNS):
        reply = lock.release(f"t{turn}", ask("g", WRITE, f"t{turn + 1}"))
        assert answers(reply) == [Granted]
    reply = lock.release(f"t{MAX_LOCAL_TURNS}", ask("g", WRITE, "next"))
    assert isinstance(reply, Released)
    (waiting,) = reply.then
    assert isinstance(waiting, Waiting)
    assert waiting.retry_after == 0
    assert lock.seat is None
    assert lock.woken == ["g"]
    assert granted(lock.ask("g", WRITE, "next"))
    assert answers(lock.release("next", ask("g", WRITE, "and on"))) == [Granted]
