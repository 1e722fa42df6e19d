"""What a step costs the server, and what is done without memory."""

from __future__ import annotations

import hiredis
import pytest

from aiorwlock_remote.backends.redis.scripts import ENTER, LEAVE
from aiorwlock_remote.core.commands import (
    Downgrade,
    ForceRelease,
    Granted,
    Release,
    Released,
    Renew,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.ticket import Mode
from tests.backends.redis.one_resource import (
    GATE,
    LEASE,
    SECOND,
    Desk,
    acquire,
    granted,
)
from tests.servers.fix_redis import StartRedis

READ, WRITE = Mode.READ, Mode.WRITE


def test_calls_of_the_common_steps(desk: Desk) -> None:
    """The bars of the design, and what it costs to go beyond them."""
    granted(desk.write("w"))
    desk.release("w")
    assert desk.calls(acquire(WRITE, "a")) == 4
    hand = Release("a", None, (acquire(WRITE, "b"),))
    assert desk.calls(hand) == 5
    assert desk.calls(Release("b")) == 5
    assert desk.calls(acquire(READ, "r")) == 6 + 1  # the set's TTL
    assert desk.calls(acquire(READ, "s")) == 8
    assert desk.calls(Release("s")) == 10


@pytest.mark.slow
def test_a_step_does_the_same_among_10000_readers(desk: Desk) -> None:
    commands = (
        *(acquire(READ, "x"), Renew((("x", LEASE),)), Release("x")),
        *(acquire(READ, "y", "z"), Release("y"), Withdraw(GATE, READ, ("z",))),
        acquire(WRITE, "w"),
    )
    granted(desk.read(*(f"r{i}" for i in range(5))))  # as many as are shown
    few = [desk.calls(command) for command in commands]
    desk.do(Withdraw(GATE, WRITE, ("w",)))
    for first in range(0, 10_000, 500):
        granted(desk.read(*(f"m{first + i}" for i in range(500))))
    assert [desk.calls(command) for command in commands] == few
    desk.ask("DEL", desk.seat)
    assert desk.do(ForceRelease("x", 1)) is not None
    assert desk.ask("EXISTS", desk.readers) == 0, "all are void"
    assert len(desk.fields()) < 20


def test_crowds_expire_together(desk: Desk) -> None:
    """More at once than fit into one call."""
    names = [f"r{i}" for i in range(2500)]
    for first in range(0, 2500, 500):
        granted(desk.read(*names[first : first + 500], lease=600 * SECOND))
    past = desk.look().now - 1
    for name in names[:-1]:
        desk.ask("ZADD", desk.readers, past, name)
    assert desk.do(Withdraw(GATE, READ, tuple(names[:3]))) == Withdrawn()
    assert [g.ticket for g in desk.look().record.grants] == names[-1:]


def test_out_of_memory_keeps_out_but_lets_leave(start_redis: StartRedis) -> None:
    desk = Desk(start_redis())
    granted(desk.write("w"))
    desk.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(hiredis.ReplyError, match=r"^OOM "):
        desk.read("r")
    assert isinstance(desk.do(Renew((("w", LEASE),))), object)
    moved = desk.do(Downgrade("w", acquire(READ, "r").claims[0]))
    assert isinstance(moved, Granted)
    reply = desk.release("r", acquire(WRITE, "next"))
    assert isinstance(reply, Released)
    assert reply.held
    assert isinstance(desk.do(Withdraw(GATE, WRITE, ("next",))), Withdrawn)
    assert desk.ask("EXISTS", desk.seat) == 0
    desk.close()


def test_the_two_scripts_differ_in_their_first_line_alone() -> None:
    assert ENTER.text.split("\n")[1:] == LEAVE.text.split("\n")[1:]
    assert ENTER.text.split("\n")[0] == "#!lua"
    assert LEAVE.text.split("\n")[0] == "#!lua flags=allow-oom"
