"""What the scripts of a semaphore leave in the server, cost it, and refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator

import hiredis
import pytest

from aiorwlock_remote.backends.redis.keys import (
    Keys,
    PermitKeys,
    keys_of,
    resource_of,
    scan_pattern,
)
from aiorwlock_remote.backends.redis.scripts import (
    ENTER,
    LEAVE,
    PERMIT_ENTER,
    PERMIT_LEAVE,
)
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    ForceRelease,
    Granted,
    Release,
    Released,
    Renew,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.names import resource, semaphore
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import BadRecord
from tests.backends.redis.one_resource import (
    DAMAGES,
    GATE,
    LEASE,
    SECOND,
    Desk,
    Scene,
    granted,
)
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

PERMIT = Mode.PERMIT
DEFAULTS = {"number", "barred_until", "endings", "queue", "keep", "limits"}
"""Fields that mean something when they are empty, or are counted anew."""
NOT_READ = {"created", "updated"}


class PermitDesk(Desk):
    """A semaphore at a real server, asked one command at a time."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server)
        self.keys = keys_of("", semaphore("api", "stripe"), 3600)
        self.seat, self.state, self.readers, self.queue = (
            str(key, "utf-8") for key in self.keys.args[1:5] if isinstance(key, bytes)
        )


@pytest.fixture
def desk(fresh_redis: RedisServer) -> Iterator[PermitDesk]:
    desk = PermitDesk(fresh_redis)
    # The hashes are dumped in one order, however often they were looked up.
    desk.ask("CONFIG", "SET", "hash-max-listpack-value", 1024)
    yield desk
    desk.ask("CONFIG", "SET", "hash-max-listpack-value", 64)
    desk.close()


def take(
    *tickets: str, limit: int = 5, lease: int | None = LEASE, gate: str = GATE
) -> Acquire:
    """An acquire of a process that waits if it must."""
    claims = tuple(Claim(ticket, lease) for ticket in tickets)
    return Acquire(claims, PERMIT, client_id=gate, may_queue=True, limit=limit)


# ------------------------------------------------------------------- layout


def test_the_keys_of_a_semaphore(desk: PermitDesk) -> None:
    found = semaphore("a/b,c", "{d}", "p:")
    keys = keys_of("p:", found, 3600, cluster=True)
    assert isinstance(keys, PermitKeys)
    assert not isinstance(keys_of("p:", resource("a", 1), 3600), PermitKeys)
    for name in keys.args[1:5]:
        assert isinstance(name, bytes)
        told = resource_of("p:", name)
        assert told == found
        assert told.is_semaphore
        assert told.shown == ("a/b,c", "{d}")
    assert keys.seat == b"mutex_locks/p:a%2Fb%2Cc%semaphore,%7Bd%7D"
    assert keys.args[3] == b"{" + keys.seat + b"}.permits"
    lock = Keys(resource("api", 1))
    for key in (desk.seat, lock.seat, "mutex_locks/apis%semaphore,1"):
        desk.ask("SET", key, "x")
    found_keys = desk.ask("KEYS", scan_pattern("", "api%semaphore"))
    assert found_keys == [desk.seat.encode()]
    assert desk.ask("KEYS", scan_pattern("", "api")) == [lock.seat]


def test_every_key_of_the_scripts_is_declared() -> None:
    keys = r"(?:try|call)\('(?!TIME|PUBLISH)\w+', ([\w\[\]]+)"
    ours = {"SEAT", "STATE", "PERMITS", "QUEUE", "KEYS[i]"}
    assert set(re.findall(keys, PERMIT_ENTER.text)) == ours
    deleted = re.findall(r"save\.delete\('\w+', (\w+)", PERMIT_ENTER.text)
    assert set(deleted) < ours


def test_the_published_record(desk: PermitDesk) -> None:
    first = granted(desk.do(take("one", "two")))
    granted(desk.do(take("three", lease=2 * LEASE, limit=4)))
    assert desk.seat == "mutex_locks/api%semaphore,stripe"
    assert desk.ask("GET", desk.seat) == b"permits,%d" % (first.now // SECOND)
    grants = desk.look().record.grants
    assert [grant.fence for grant in first.grants] == [
        first.grants[0].fence,
        first.grants[0].fence + 1,
    ]
    last = max(grant.expires or 0 for grant in grants)
    assert desk.ask("PEXPIRETIME", desk.seat) == -(-last // 1000)
    fields = desk.fields()
    assert fields["limits"] == "4:1;5:2"
    start = f"{first.grants[1].fence},5,{first.now},{holder_of('two')},0,["
    assert fields["permit:two"].startswith(start)
    assert desk.ask("ZCARD", desk.readers) == 3
    desk.release("three")
    ends = first.now + LEASE
    assert desk.ask("PEXPIRETIME", desk.seat) == -(-ends // 1000)
    for ticket in ("one", "two"):
        assert desk.release(ticket) == Released(held=True)
    assert desk.ask("EXISTS", desk.seat, desk.readers) == 0
    assert set(desk.fields()) == {"v", "last", "created", "updated", "keep"}


def test_every_key_ends_unless_a_lease_never_does(desk: PermitDesk) -> None:
    granted(desk.do(take("one", limit=1)))
    assert isinstance(desk.do(take("two", limit=1, gate="other")), Waiting)
    for key in (desk.state, desk.readers, desk.queue):
        assert desk.ask("PEXPIRETIME", key) > 0, key
    desk.release("one")
    granted(desk.do(take("two", limit=1, gate="other", lease=None)))
    for key in (desk.seat, desk.state, desk.readers):
        assert desk.ask("PEXPIRETIME", key) == -1, key
    desk.do(Adopt("two", Claim("three", LEASE)))
    for key in (desk.seat, desk.state, desk.readers):
        assert desk.ask("PEXPIRETIME", key) > 0, key


# --------------------------------------------------------------------- cost


def test_calls_of_the_common_steps(desk: PermitDesk) -> None:
    granted(desk.do(take("first")))
    desk.release("first")
    assert desk.calls(take("one")) == 8
    assert desk.calls(take("two")) == 9
    assert desk.calls(Release("two")) == 11
    assert desk.calls(Release("one")) == 11


@pytest.mark.slow
def test_a_step_does_the_same_among_1000_permits(desk: PermitDesk) -> None:
    commands = (
        *(take("x", limit=2000), Renew((("x", 2 * LEASE),)), Release("x")),
        *(take("y", "z", limit=2000), Release("y"), Withdraw(GATE, PERMIT, ("z",))),
    )
    granted(desk.do(take(*(f"few{i}" for i in range(5)), limit=2000)))
    few = [desk.calls(command) for command in commands]
    for first in (0, 500):
        names = (f"many{first + i}" for i in range(500))
        granted(desk.do(take(*names, limit=2000)))
    assert [desk.calls(command) for command in commands] == few
    assert desk.fields()["limits"] == "2000:1005"


def test_crowds_expire_together(desk: PermitDesk) -> None:
    """More at once than fit into one call."""
    for first in range(0, 2500, 500):
        names = (f"r{first + i}" for i in range(500))
        granted(desk.do(take(*names, limit=9999)))
    past = desk.look().now - 1
    for number in range(2499):
        desk.ask("ZADD", desk.readers, past, f"r{number}")
    desk.do(Withdraw(GATE, PERMIT))
    assert [grant.ticket for grant in desk.look().record.grants] == ["r2499"]
    assert desk.fields()["limits"] == "9999:1"
    assert len(desk.fields()) < 20
    assert desk.ask("ZCARD", desk.readers) == 1


def test_out_of_memory_keeps_out_but_lets_leave(start_redis: StartRedis) -> None:
    desk = PermitDesk(start_redis())
    granted(desk.do(take("one")))
    desk.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(hiredis.ReplyError, match=r"^OOM "):
        desk.do(take("two"))
    assert isinstance(desk.do(Renew((("one", LEASE),))), object)
    assert desk.release("one") == Released(held=True)
    desk.close()


def test_locks_load_nothing_of_a_semaphore() -> None:
    assert PERMIT_ENTER.text.split("\n")[1:] == PERMIT_LEAVE.text.split("\n")[1:]
    for script in (ENTER, LEAVE):
        assert "permit" not in script.text


# ------------------------------------------------------- loss and damage


def test_lost_permits_keep_nobody_out(desk: PermitDesk) -> None:
    """Part of a record lost (an eviction): `permits` is our own word, as everywhere."""
    granted(desk.do(take("one")))
    desk.ask("DEL", desk.readers)
    granted(desk.do(take("two")))
    assert {"permit:two"} == {f for f in desk.fields() if f.startswith("permit:")}


def test_a_step_that_ended_in_its_middle_is_counted_anew(desk: PermitDesk) -> None:
    """A field without a member of the sorted set is a grant nobody was told of."""
    granted(desk.do(take("one", "two")))
    desk.ask("ZREM", desk.readers, "two")
    assert isinstance(desk.do(take("three", "four", "five", "six")), Granted)
    fields = desk.fields()
    assert fields["limits"] == "5:5"
    assert "permit:two" not in fields


class PermitScene(Scene):
    """A semaphore in use, of which one thing is damaged at a time."""

    def __init__(self, desk: PermitDesk) -> None:
        reply = granted(desk.do(take("ticket-one", "ticket-two", limit=2)))
        desk.do(take("waiting", limit=2, gate="othergate"))
        desk.ask("HSET", desk.state, "endings", "5,abc,forced")
        fence, ask = reply.grants[0].fence, take("new-ticket", limit=2)
        self.commands: list[Command] = [
            *(ask, Acquire(ask.claims, PERMIT, limit=2)),
            *(Release("ticket-one"), Release("ticket-one", None, (ask,))),
            Renew((("ticket-one", LEASE), ("ticket-two", LEASE))),
            Withdraw(GATE, PERMIT, ("ticket-one", "ticket-two")),
            Adopt("ticket-one", ask.claims[0]),
            ForceRelease(holder_of("ticket-one"), fence),
        ]
        super().__init__(desk)


def test_every_field_in_every_way(desk: PermitDesk) -> None:
    """Told by key and field before anything is written, or it makes no difference."""
    scene = PermitScene(desk)
    refused = 0
    for key, field, text in list(scene.fields()):
        for damage in DAMAGES:
            bad = {"half": text[: len(text) // 2], "nul": f"{text}\0"}.get(
                damage, damage
            )
            fits = text.isdigit() or field == "seat"  # half of it does, too
            if bad == text or (damage == "half" and fits):
                continue
            for command in scene.commands:
                scene.reset()
                desk.ask("HSET", key, field, bad)
                told = scene.refusal(command)
                if told is not None:
                    start = "permit:" if field.startswith("permit:") else field[:12]
                    assert f"{key}: field {start}" in told, told
                    assert "ticket-" not in told
                    refused += 1
                elif not field.startswith("permit:"):
                    known = field in DEFAULTS or field.startswith("place:")
                    fine = not bad and known
                    assert fine or field in NOT_READ, (field, bad, command)
    assert refused > 100


def test_every_key_of_another_type(desk: PermitDesk) -> None:
    scene = PermitScene(desk)
    for key in scene.keys:
        for command in scene.commands:
            scene.reset()
            desk.ask("DEL", key)
            desk.ask("RPUSH", key, "x")
            assert f"BADRECORD {key} is not a" in (scene.refusal(command) or "")


@pytest.mark.parametrize("score", ["-inf", "-5", "1.5", "1e300"])
def test_every_score(desk: PermitDesk, score: str) -> None:
    scene = PermitScene(desk)
    for ticket in ("ticket-one", "ticket-two"):
        for command in scene.commands:
            scene.reset()
            desk.ask("ZADD", desk.readers, score, ticket)
            told = scene.refusal(command) or ""
            assert f"{desk.readers}: field score" in told
            assert ticket not in told


def test_a_permit_without_a_limit_is_not_shown(desk: PermitDesk) -> None:
    PermitScene(desk)
    desk.ask("HSET", desk.state, "permit:ticket-one", "5,0,5,abc,0,[]")
    with pytest.raises(BadRecord):
        desk.look()
