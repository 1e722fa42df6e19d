"""A state that says what cannot be: refused, and left as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import hiredis
import pytest

from aiorwlock_remote import BadRecord, connect
from aiorwlock_remote.backends.redis.connection.protocol import Request
from aiorwlock_remote.backends.redis.recipes import (
    SetKeys,
    encode_ask,
    encode_member,
    encode_withdraw,
)
from aiorwlock_remote.backends.redis.scripts import OCCUPY, SET_ENTER
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.mutex_set import TakeRequest
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.ports import StoreSettings
from tests.backends.redis.one_resource import (
    CLIENT_ID,
    LEASE,
    DamagedResource,
    ResourceClient,
)
from tests.servers.redis import RedisServer

READ, WRITE = Mode.READ, Mode.WRITE
NEW = Claim("new-ticket", LEASE)
ASKS = [
    *(
        Acquire((NEW,), mode, client_id=CLIENT_ID, may_queue=True)
        for mode in (READ, WRITE)
    ),
    *(Acquire((NEW,), mode) for mode in (READ, WRITE)),
]
DEFAULTS = {  # of fields that mean something when they are empty
    *("number", "barred_until", "admit_upto", "admit_until", "turns"),
    *("upgraded", "pushed", "endings", "upgrader", "queue", "keep", "readers"),
    "plain",
}
NOT_READ = {"created", "updated"}  # by a step


class DamagedLock(DamagedResource):
    """A resource in use, of which one thing is damaged at a time."""

    def __init__(self, client: ResourceClient, mode: Mode, *, queued: bool) -> None:
        """``queued``: others wait, so that no step takes a short cut."""
        one, two = (
            ("writer-one", "nobody") if mode is WRITE else ("read-one", "read-two")
        )
        asked = client.write if mode is WRITE else client.read
        if (
            mode is WRITE and not queued
        ):  # two cycles, so that it is in the field `plain`
            for _ in range(2):
                asked(one)
                client.release(one)
        asked(one)
        if mode is READ:
            client.read(two)
        if queued:
            client.write("other-writer", client_id="othergate", push=True)
            client.read("other-reader", client_id="othergate")
            if mode is READ:
                client.do(
                    Upgrade(one, Claim("upgraded", LEASE), "othergate", may_wait=True)
                )
            later = int(time.time() * 1e6) + 10**9
            more = ("endings", "5,abc,forced", "turns", "3", "admit_until", str(later))
            client.ask("HSET", client.state, *more)
            if mode is WRITE:
                client.ask("HSET", client.state, "pushed", client.fields()["last"])
                client.ask("HSET", client.state, "plain", "5")
        elif mode is WRITE:
            assert client.fields()["plain"] == client.fields()["updated"]
        fence = int(client.fields()["last"])
        self.commands: list[Command] = [
            *ASKS,
            *(Release(one, None, then) for then in ((), (ASKS[0],), (ASKS[1],))),
            Renew(((one, LEASE), (two, LEASE))),
            Withdraw(CLIENT_ID, mode, (one, two)),
            Adopt(one, NEW),
            ForceRelease(holder_of(one), fence),
            Downgrade(one, NEW) if mode is WRITE else Upgrade(one, NEW),
        ]
        super().__init__(client)


@pytest.fixture
def client(client: ResourceClient) -> Iterator[ResourceClient]:
    """Whose hashes are dumped in one order, however often they were looked up."""
    setting = "hash-max-listpack-value"
    _, before = client.ask("CONFIG", "GET", setting)
    client.ask("CONFIG", "SET", setting, 1024)
    yield client
    client.ask("CONFIG", "SET", setting, before)


@pytest.mark.slow
@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("mode", [READ, WRITE])
def test_every_field_in_every_way(
    client: ResourceClient, mode: Mode, queued: bool
) -> None:
    """The error names key and field before any write, or the damage has no effect.

    With a queue every step reads all but what it does not need of the readers; without
    one there are short cuts, which read less.
    """
    damaged = DamagedLock(client, mode, queued=queued)
    refused = 0
    for key, field, bad in damaged.damages():
        for command in damaged.commands:
            damaged.reset()
            client.ask("HSET", key, field, bad)
            message = damaged.refusal(command)
            if message is not None:
                start = "reader:" if field.startswith("reader:") else field[:12]
                named = {start, "seat"} if field == "writer" else {start}
                assert any(f"{key}: field {name}" in message for name in named), message
                refused += 1
            elif queued and not field.startswith("reader:"):
                fine = not bad and (field in DEFAULTS or field[:6] == "place:")
                assert fine or field in NOT_READ, (field, bad, command)
    assert refused > 100


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_every_key_of_another_type(client: ResourceClient, mode: Mode) -> None:
    damaged = DamagedLock(client, mode, queued=True)
    damaged.is_refused_with_keys_of_another_type()


@pytest.mark.parametrize("score", ["-inf", "-5", "1.5", "1e300"])
@pytest.mark.parametrize("queued", [True, False])
def test_every_score(client: ResourceClient, score: str, queued: bool) -> None:
    damaged = DamagedLock(client, READ, queued=queued)
    for ticket in ("read-one", "read-two"):
        for command in damaged.commands:
            damaged.reset()
            client.ask("ZADD", client.readers, score, ticket)
            message = damaged.refusal(command)
            if queued or message is not None:
                assert f"{client.readers}: field score" in (message or "")
                assert ticket not in (message or "")


def test_a_reader_that_nobody_recorded(client: ResourceClient) -> None:
    """Whoever meets it drops it: a step that was stopped leaves such a ticket."""
    damaged = DamagedLock(client, READ, queued=True)
    for command in damaged.commands:
        damaged.reset()
        client.ask("HDEL", client.state, "reader:read-one")
        assert damaged.refusal(command) is None
        assert client.ask("ZSCORE", client.readers, "read-one") is None, command
        assert "read-one" not in [grant.ticket for grant in client.look().record.grants]


pytestmark = pytest.mark.anyio

STATE = "{mutex_locks/damaged,1}.state"
DAMAGED = [
    ("last", "x"),
    ("last", str(2**53)),  # the next fence would not be a greater one
    ("barred_until", "1e999"),
    ("plain", "x"),
    ("upgrader", "1"),
    ("v", "2"),
]


def damage(server: RedisServer, field: str, text: str) -> list[bytes]:
    """Write a state with one bad field; the state."""
    keep = int(time.time() * 1000) + 10**7
    fields = {"v": 1, "last": 5, "keep": keep} | {field: text}
    server.ask("HSET", STATE, *(word for pair in fields.items() for word in pair))
    return sorted(server.ask("HGETALL", STATE))


@pytest.mark.parametrize(("field", "text"), DAMAGED)
async def test_a_damaged_state_grants_nothing(
    fresh_redis: RedisServer, field: str, text: str
) -> None:
    before = damage(fresh_redis, field, text)
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(BadRecord):
            await locks.mutex("damaged", 1).acquire(timeout=1)
    assert sorted(fresh_redis.ask("HGETALL", STATE)) == before
    assert fresh_redis.ask("EXISTS", "mutex_locks/damaged,1") == 0


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("last", "x"), ("endings", "zzz"), ("turns", "1.5"), ("v", "2")),
        ("plain", "1.5"),
    ],
)
async def test_a_damaged_state_is_not_shown(
    fresh_redis: RedisServer, field: str, text: str
) -> None:
    damage(fresh_redis, field, text)
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(BadRecord):
            await locks.mutex("damaged", 1).info()
        assert [seen async for seen in locks.list()] == []


def steps_of_a_set(client: ResourceClient) -> tuple[SetKeys, list[Request]]:
    """One held, one place, and what is done at the set of them."""
    keys = SetKeys(StoreSettings("client"), "proxies", "client")
    asks = [TakeRequest("", ticket, LEASE) for ticket in ("set-ticket", "another")]
    two = Renew((("set-ticket", LEASE), ("another", LEASE)))
    head = SET_ENTER, (*keys.args, "c", LEASE, "a")
    for script, args in (head, encode_ask(keys, b"client.1", asks, 10**9)):
        client.ask("EVALSHA", script.sha, *args)
    return keys, [
        encode_ask(keys, b"client.1", asks, 10**9),
        encode_member(keys, two),
        encode_member(keys, Release("set-ticket")),
        encode_withdraw(keys, [b"client.1,"], ["another", "set-ticket"], LEASE),
    ]


@pytest.mark.parametrize("bad", ["x", "-5", "9" * 30, "1e3", "nan", "\0"])
def test_every_field_of_a_set(client: ResourceClient, bad: str) -> None:
    """The error comes before any write; in a renewal of two, whichever it is."""
    keys, steps = steps_of_a_set(client)
    _, names, state, queue = keys.args[:4]
    flat = client.ask("HGETALL", state)
    every = (names, state, queue)
    whole = [client.ask("DUMP", key) for key in every]
    damaged = {field for field in flat[::2] if not field.startswith(b"m")}
    assert len(damaged) == 4
    for field in damaged:
        for number, (script, args) in enumerate(steps):
            for key, dump in zip(every, whole, strict=True):
                client.ask("RESTORE", key, 0, dump, "REPLACE")
            client.ask("HSET", state, field, bad)
            before = [client.ask("DUMP", key) for key in every]
            if field.startswith(b"p") and number == 1:
                continue  # a renewal does not look at who waits
            shown = field[:5].decode() if field.startswith(b"t") else field.decode()
            with pytest.raises(hiredis.ReplyError, match=f"^BADRECORD .* {shown}"):
                client.ask("EVALSHA", script.sha, *args)
            assert [client.ask("DUMP", key) for key in every] == before


@pytest.mark.parametrize("bad", ["x", "-5", "9" * 30, "inf", "", "\0"])
@pytest.mark.parametrize("key", ["{pending:a}.since", "{pending:a}.seen"])
def test_every_time_of_who_is_pending(
    client: ResourceClient, key: str, bad: str
) -> None:
    """Also of one that is forgotten in that step."""
    keys = ("pending:a", "using:a", "{pending:a}.since", "{pending:a}.seen")
    client.ask("SADD", "pending:a", "somebody")
    for name in keys[2:]:
        client.ask("HSET", name, "gone", 5, "somebody", 5)
    client.ask("HSET", key, "somebody", bad)
    before = [client.ask("DUMP", name) for name in keys]
    with pytest.raises(hiredis.ReplyError, match=f"^BADRECORD {key}: field somebody"):
        client.ask("EVALSHA", OCCUPY.sha, 4, *keys, "p", "me", 1000)
    assert [client.ask("DUMP", name) for name in keys] == before
