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
    CLIENT_ID,
    LEASE,
    SECOND,
    DamagedResource,
    ResourceClient,
    granted,
)
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

PERMIT = Mode.PERMIT
DEFAULTS = {"number", "barred_until", "endings", "queue", "keep", "limits"}
"""Fields that mean something when they are empty, or are counted anew."""
NOT_READ = {"created", "updated"}


class SemaphoreClient(ResourceClient):
    """A semaphore at a real server, asked one command at a time."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server)
        self.keys = keys_of("", semaphore("api", "stripe"), 3600)
        self.seat, self.state, self.readers, self.queue = (
            str(key, "utf-8") for key in self.keys.args[1:5] if isinstance(key, bytes)
        )


@pytest.fixture
def client(fresh_redis: RedisServer) -> Iterator[SemaphoreClient]:
    client = SemaphoreClient(fresh_redis)
    # The hashes are dumped in one order, however often they were looked up.
    client.ask("CONFIG", "SET", "hash-max-listpack-value", 1024)
    yield client
    client.ask("CONFIG", "SET", "hash-max-listpack-value", 64)
    client.close()


def take(
    *tickets: str, limit: int = 5, lease: int | None = LEASE, client_id: str = CLIENT_ID
) -> Acquire:
    """An acquire of a process that waits if it must."""
    claims = tuple(Claim(ticket, lease) for ticket in tickets)
    return Acquire(claims, PERMIT, client_id=client_id, may_queue=True, limit=limit)


# ------------------------------------------------------------------- layout


def test_the_keys_of_a_semaphore(client: SemaphoreClient) -> None:
    found = semaphore("a/b,c", "{d}", "p:")
    keys = keys_of("p:", found, 3600, cluster=True)
    assert isinstance(keys, PermitKeys)
    assert not isinstance(keys_of("p:", resource("a", 1), 3600), PermitKeys)
    for name in keys.args[1:5]:
        assert isinstance(name, bytes)
        named = resource_of("p:", name)
        assert named == found
        assert named.is_semaphore
        assert named.shown == ("a/b,c", "{d}")
    assert keys.seat == b"mutex_locks/p:a%2Fb%2Cc%semaphore,%7Bd%7D"
    assert keys.args[3] == b"{" + keys.seat + b"}.permits"
    lock = Keys(resource("api", 1))
    for key in (client.seat, lock.seat, "mutex_locks/apis%semaphore,1"):
        client.ask("SET", key, "x")
    found_keys = client.ask("KEYS", scan_pattern("", "api%semaphore"))
    assert found_keys == [client.seat.encode()]
    assert client.ask("KEYS", scan_pattern("", "api")) == [lock.seat]


def test_every_key_of_the_scripts_is_declared() -> None:
    keys = r"(?:try|call)\('(?!TIME|PUBLISH)\w+', ([\w\[\]]+)"
    ours = {"MUTEX", "STATE", "PERMITS", "QUEUE", "KEYS[i]"}
    assert set(re.findall(keys, PERMIT_ENTER.text)) == ours
    deleted = re.findall(r"save\.delete\('\w+', (\w+)", PERMIT_ENTER.text)
    assert set(deleted) < ours


def test_the_published_record(client: SemaphoreClient) -> None:
    first = granted(client.do(take("one", "two")))
    granted(client.do(take("three", lease=2 * LEASE, limit=4)))
    assert client.seat == "mutex_locks/api%semaphore,stripe"
    assert client.ask("GET", client.seat) == b"permits,%d" % (first.now // SECOND)
    grants = client.look().record.grants
    assert [grant.fence for grant in first.grants] == [
        first.grants[0].fence,
        first.grants[0].fence + 1,
    ]
    last = max(grant.expires or 0 for grant in grants)
    assert client.ask("PEXPIRETIME", client.seat) == -(-last // 1000)
    fields = client.fields()
    assert fields["limits"] == "4:1;5:2"
    start = f"{first.grants[1].fence},5,{first.now},{holder_of('two')},0,["
    assert fields["permit:two"].startswith(start)
    assert client.ask("ZCARD", client.readers) == 3
    client.release("three")
    ends = first.now + LEASE
    assert client.ask("PEXPIRETIME", client.seat) == -(-ends // 1000)
    for ticket in ("one", "two"):
        assert client.release(ticket) == Released(held=True)
    assert client.ask("EXISTS", client.seat, client.readers) == 0
    assert set(client.fields()) == {"v", "last", "created", "updated", "keep"}


def test_every_key_ends_unless_a_lease_never_does(client: SemaphoreClient) -> None:
    granted(client.do(take("one", limit=1)))
    assert isinstance(client.do(take("two", limit=1, client_id="other")), Waiting)
    for key in (client.state, client.readers, client.queue):
        assert client.ask("PEXPIRETIME", key) > 0, key
    client.release("one")
    granted(client.do(take("two", limit=1, client_id="other", lease=None)))
    for key in (client.seat, client.state, client.readers):
        assert client.ask("PEXPIRETIME", key) == -1, key
    client.do(Adopt("two", Claim("three", LEASE)))
    for key in (client.seat, client.state, client.readers):
        assert client.ask("PEXPIRETIME", key) > 0, key


# --------------------------------------------------------------------- cost


def test_calls_of_the_common_steps(client: SemaphoreClient) -> None:
    granted(client.do(take("first")))
    client.release("first")
    assert client.calls(take("one")) == 8
    assert client.calls(take("two")) == 9
    assert client.calls(Release("two")) == 11
    assert client.calls(Release("one")) == 11


@pytest.mark.slow
def test_a_step_does_the_same_among_1000_permits(client: SemaphoreClient) -> None:
    commands = (
        *(take("x", limit=2000), Renew((("x", 2 * LEASE),)), Release("x")),
        *(
            take("y", "z", limit=2000),
            Release("y"),
            Withdraw(CLIENT_ID, PERMIT, ("z",)),
        ),
    )
    granted(client.do(take(*(f"few{i}" for i in range(5)), limit=2000)))
    few = [client.calls(command) for command in commands]
    for first in (0, 500):
        names = (f"many{first + i}" for i in range(500))
        granted(client.do(take(*names, limit=2000)))
    assert [client.calls(command) for command in commands] == few
    assert client.fields()["limits"] == "2000:1005"


def test_crowds_expire_together(client: SemaphoreClient) -> None:
    """More at once than fit into one call."""
    for first in range(0, 2500, 500):
        names = (f"r{first + i}" for i in range(500))
        granted(client.do(take(*names, limit=9999)))
    past = client.look().now - 1
    for number in range(2499):
        client.ask("ZADD", client.readers, past, f"r{number}")
    client.do(Withdraw(CLIENT_ID, PERMIT))
    assert [grant.ticket for grant in client.look().record.grants] == ["r2499"]
    assert client.fields()["limits"] == "9999:1"
    assert len(client.fields()) < 20
    assert client.ask("ZCARD", client.readers) == 1


def test_out_of_memory_keeps_out_but_lets_leave(start_redis: StartRedis) -> None:
    client = SemaphoreClient(start_redis())
    granted(client.do(take("one")))
    client.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(hiredis.ReplyError, match=r"^OOM "):
        client.do(take("two"))
    assert isinstance(client.do(Renew((("one", LEASE),))), object)
    assert client.release("one") == Released(held=True)
    client.close()


def test_locks_load_nothing_of_a_semaphore() -> None:
    assert PERMIT_ENTER.text.split("\n")[1:] == PERMIT_LEAVE.text.split("\n")[1:]
    for script in (ENTER, LEAVE):
        assert "permit" not in script.text


# ------------------------------------------------------- loss and damage


def test_lost_permits_keep_nobody_out(client: SemaphoreClient) -> None:
    """Part of a record lost (an eviction): `permits` is our own word, as everywhere."""
    granted(client.do(take("one")))
    client.ask("DEL", client.readers)
    granted(client.do(take("two")))
    assert {"permit:two"} == {f for f in client.fields() if f.startswith("permit:")}


def test_a_step_that_ended_in_its_middle_is_counted_anew(
    client: SemaphoreClient,
) -> None:
    """A field without a member of the sorted set is a grant that no reply reported."""
    granted(client.do(take("one", "two")))
    client.ask("ZREM", client.readers, "two")
    assert isinstance(client.do(take("three", "four", "five", "six")), Granted)
    fields = client.fields()
    assert fields["limits"] == "5:5"
    assert "permit:two" not in fields


class DamagedSemaphore(DamagedResource):
    """A semaphore in use, of which one thing is damaged at a time."""

    def __init__(self, client: SemaphoreClient) -> None:
        reply = granted(client.do(take("ticket-one", "ticket-two", limit=2)))
        client.do(take("waiting", limit=2, client_id="othergate"))
        client.ask("HSET", client.state, "endings", "5,abc,forced")
        fence, ask = reply.grants[0].fence, take("new-ticket", limit=2)
        self.commands: list[Command] = [
            *(ask, Acquire(ask.claims, PERMIT, limit=2)),
            *(Release("ticket-one"), Release("ticket-one", None, (ask,))),
            Renew((("ticket-one", LEASE), ("ticket-two", LEASE))),
            Withdraw(CLIENT_ID, PERMIT, ("ticket-one", "ticket-two")),
            Adopt("ticket-one", ask.claims[0]),
            ForceRelease(holder_of("ticket-one"), fence),
        ]
        super().__init__(client)


def test_every_field_in_every_way(client: SemaphoreClient) -> None:
    """The error names key and field before any write, or the damage has no effect."""
    damaged = DamagedSemaphore(client)
    refused = 0
    for key, field, bad in damaged.damages():
        for command in damaged.commands:
            damaged.reset()
            client.ask("HSET", key, field, bad)
            message = damaged.refusal(command)
            if message is not None:
                start = "permit:" if field.startswith("permit:") else field[:12]
                assert f"{key}: field {start}" in message, message
                assert "ticket-" not in message
                refused += 1
            elif not field.startswith("permit:"):
                known = field in DEFAULTS or field.startswith("place:")
                fine = not bad and known
                assert fine or field in NOT_READ, (field, bad, command)
    assert refused > 100


def test_every_key_of_another_type(client: SemaphoreClient) -> None:
    damaged = DamagedSemaphore(client)
    damaged.is_refused_with_keys_of_another_type()


@pytest.mark.parametrize("score", ["-inf", "-5", "1.5", "1e300"])
def test_every_score(client: SemaphoreClient, score: str) -> None:
    damaged = DamagedSemaphore(client)
    for ticket in ("ticket-one", "ticket-two"):
        for command in damaged.commands:
            damaged.reset()
            client.ask("ZADD", client.readers, score, ticket)
            message = damaged.refusal(command) or ""
            assert f"{client.readers}: field score" in message
            assert ticket not in message


def test_a_permit_without_a_limit_is_not_shown(client: SemaphoreClient) -> None:
    DamagedSemaphore(client)
    client.ask("HSET", client.state, "permit:ticket-one", "5,0,5,abc,0,[]")
    with pytest.raises(BadRecord):
        client.look()
