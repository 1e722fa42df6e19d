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
    CLIENT_ID,
    LEASE,
    SECOND,
    ResourceClient,
    acquire,
    granted,
)
from tests.servers.fix_redis import StartRedis

READ, WRITE = Mode.READ, Mode.WRITE


def test_calls_of_the_common_steps(client: ResourceClient) -> None:
    """The bars of the design, and what it costs to go beyond them."""
    for _ in range(2):  # the second time nothing else is of interest: plain.lua
        granted(client.write("w"))
        client.release("w")
    assert client.calls(acquire(WRITE, "a")) == 4
    assert client.calls(Release("a")) == 5
    granted(client.write("a"))
    hand = Release("a", None, (acquire(WRITE, "b"),))
    assert client.calls(hand) == 5
    assert client.calls(Release("b")) == 5 + 1  # it looked whether it is plain
    assert client.calls(acquire(READ, "r")) == 6 + 1  # the set's TTL
    assert client.calls(acquire(READ, "s")) == 8
    assert client.calls(Release("s", READ)) == 10


@pytest.mark.slow
def test_a_step_does_the_same_among_10000_readers(client: ResourceClient) -> None:
    commands = (
        *(acquire(READ, "x"), Renew((("x", LEASE),)), Release("x")),
        *(acquire(READ, "y", "z"), Release("y"), Withdraw(CLIENT_ID, READ, ("z",))),
        acquire(WRITE, "w"),
    )
    granted(client.read(*(f"r{i}" for i in range(5))))  # as many as are shown
    few = [client.calls(command) for command in commands]
    client.do(Withdraw(CLIENT_ID, WRITE, ("w",)))
    for first in range(0, 10_000, 500):
        granted(client.read(*(f"m{first + i}" for i in range(500))))
    assert [client.calls(command) for command in commands] == few
    client.ask("DEL", client.seat)
    assert client.do(ForceRelease("x", 1)) is not None
    assert client.ask("EXISTS", client.readers) == 0, "all are void"
    assert len(client.fields()) < 20


def test_crowds_expire_together(client: ResourceClient) -> None:
    """More at once than fit into one call."""
    names = [f"r{i}" for i in range(2500)]
    for first in range(0, 2500, 500):
        granted(client.read(*names[first : first + 500], lease=600 * SECOND))
    past = client.look().now - 1
    for name in names[:-1]:
        client.ask("ZADD", client.readers, past, name)
    assert client.do(Withdraw(CLIENT_ID, READ, tuple(names[:3]))) == Withdrawn()
    assert [g.ticket for g in client.look().record.grants] == names[-1:]


def test_out_of_memory_keeps_out_but_lets_leave(start_redis: StartRedis) -> None:
    client = ResourceClient(start_redis())
    granted(client.write("w"))
    client.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(hiredis.ReplyError, match=r"^OOM "):
        client.read("r")
    assert isinstance(client.do(Renew((("w", LEASE),))), object)
    moved = client.do(Downgrade("w", acquire(READ, "r").claims[0]))
    assert isinstance(moved, Granted)
    reply = client.release("r", acquire(WRITE, "next"))
    assert isinstance(reply, Released)
    assert reply.held
    assert isinstance(client.do(Withdraw(CLIENT_ID, WRITE, ("next",))), Withdrawn)
    assert client.ask("EXISTS", client.seat) == 0
    client.close()


def test_the_two_scripts_differ_in_their_first_line_alone() -> None:
    assert ENTER.text.split("\n")[1:] == LEAVE.text.split("\n")[1:]
    assert ENTER.text.split("\n")[0] == "#!lua"
    assert LEAVE.text.split("\n")[0] == "#!lua flags=allow-oom"
