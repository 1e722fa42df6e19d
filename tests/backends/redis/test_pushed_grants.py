"""Grants that a script pushes: what is stored, and what the message says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis.codec import encode, pushed_in
from aiorwlock_remote.backends.redis.keys import wake_channel
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.backends.redis.scripts import LEAVE
from aiorwlock_remote.backends.redis.store import RedisStore, WakeupDispatcher
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    NotHeld,
    Release,
    Released,
    Renew,
    Waiting,
)
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.pushed import PushedGrant, proof_of
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.differential import Wire, edited, short_cuts_off
from tests.backends.redis.one_resource import LEASE, SECOND, ResourceClient, granted
from tests.backends.redis.rights import rules
from tests.servers.redis import RedisServer

OTHER = "othergate"
WINDOW = 100_000


class Subscriber:
    """What the client ``OTHER`` hears."""

    def __init__(self, server: RedisServer) -> None:
        self._wire = Wire(server.port)
        self._wire.ask([("SUBSCRIBE", wake_channel(OTHER))])

    def hear(self) -> bytes:
        """Return the next message."""
        _, _, payload = self._wire.take()
        return bytes(payload)

    def heard_before(self, server: RedisServer, mark: bytes) -> list[bytes]:
        """Return the messages that came before one that is sent now."""
        server.ask("PUBLISH", wake_channel(OTHER), mark)
        return list(iter(self.hear, mark))

    def close(self) -> None:
        self._wire.close()


@pytest.fixture
def other(fresh_redis: RedisServer) -> Iterator[Subscriber]:
    subscriber = Subscriber(fresh_redis)
    yield subscriber
    subscriber.close()


def waits(
    client: ResourceClient,
    ticket: str,
    client_id: str = OTHER,
    **options: Any,  # noqa: ANN401
) -> None:
    """A writer of another process gets an entry with its ticket."""
    assert isinstance(
        client.write(ticket, client_id=client_id, push=True, **options), Waiting
    )


def test_the_message_and_what_is_stored(
    client: ResourceClient, other: Subscriber
) -> None:
    granted(client.write("mine"))
    waits(client, "theirs")
    client.release("mine")
    assert not client.rung
    record = client.look().record
    (grant,) = record.grants
    assert (grant.ticket, record.pushed) == ("theirs", True)
    assert grant.expires == grant.since + WINDOW
    assert client.fields()["pushed"] == str(grant.fence)
    assert record.queue[0].ticket == "theirs"
    assert record.queue[0].lease == LEASE
    assert client.ask("GET", client.seat) == b"theirs,%d" % (grant.since // SECOND)
    assert client.ask("PEXPIRETIME", client.seat) == -(-grant.expires // 1000)
    key, _, text = other.hear().rpartition(b" ")
    assert key == client.seat.encode()
    assert text.startswith(b"%d,%d,%d," % (grant.since, grant.expires, grant.fence))
    pushed = pushed_in(text)
    assert pushed == PushedGrant.of(grant)
    assert pushed.proves("theirs")
    assert b"theirs" not in text


def test_a_grant_pushed_to_the_caller_is_in_its_reply(client: ResourceClient) -> None:
    granted(client.write("first"))
    client.write("second", push=True)
    client.release("first")
    (grant,) = client.look().record.grants
    assert grant.ticket == "second"
    assert (client.rung, client.pushed) == (True, PushedGrant.of(grant))


@pytest.mark.usefixtures("other")
def test_the_confirmation(client: ResourceClient) -> None:
    granted(client.write("mine"))
    waits(client, "theirs", more=1)
    client.release("mine")
    following = Claim("after", LEASE)
    reply = granted(
        client.write(
            "theirs", client_id=OTHER, confirms=True, more=1, following=following
        )
    )
    assert reply.placed
    assert reply.grants[0].expires == reply.now + LEASE
    record = client.look().record
    assert not record.pushed
    assert "pushed" not in client.fields()
    (entry,) = record.queue
    assert (entry.ticket, entry.lease) == ("after", LEASE)
    late = client.write("long-gone", client_id="late", confirms=True)
    assert isinstance(late, NotHeld)
    assert len(client.look().record.queue) == 1


def test_a_waiting_reply_says_the_servers_time(client: ResourceClient) -> None:
    granted(client.write("mine"))
    before, _ = client.ask("TIME")
    reply = client.write("theirs", client_id=OTHER)
    assert isinstance(reply, Waiting)
    assert 0 <= reply.now - int(before) * SECOND < 10 * SECOND


def test_a_client_that_does_not_listen_is_skipped(
    client: ResourceClient, other: Subscriber
) -> None:
    """What was pushed to it is taken back in the same step, its ticket is forgotten."""
    granted(client.write("mine"))
    waits(client, "deaf", client_id="deafgate")
    waits(client, "theirs")
    client.release("mine")
    record = client.look().record
    assert [g.ticket for g in record.grants] == ["theirs"]
    assert [p.ticket for p in record.queue] == ["", "theirs"]
    pushed = pushed_in(other.hear().rpartition(b" ")[2])
    assert pushed is not None
    assert pushed.fence == record.last
    client.release("theirs")
    assert client.look().record.grants == ()


def test_a_push_without_any_listener_frees_the_lock(client: ResourceClient) -> None:
    """The lock is free, and the next that asks gets it; no record is left behind."""
    granted(client.write("mine"))
    waits(client, "deaf", client_id="deafgate")
    client.release("mine")
    record = client.look().record
    assert (record.grants, record.pushed, record.seat) == ((), False, None)
    assert client.ask("EXISTS", client.seat) == 0
    assert "writer" not in client.fields()
    granted(client.write("next"))


RIGHTS = ("hset", "set")


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("change", [str, short_cuts_off])
def test_a_grant_that_was_not_stored_is_not_sent(
    fresh_redis: RedisServer, right: str, change: Callable[[str], str]
) -> None:
    """A step is refused in its middle: its client must not enter by a message."""
    assert not _messages_without(fresh_redis, right, change(LEAVE.text))


@pytest.mark.parametrize("right", RIGHTS)
def test_a_message_before_the_write_would_be_sent(
    fresh_redis: RedisServer, right: str
) -> None:
    """The meta-check of the one above."""
    text = edited(short_cuts_off(LEAVE.text), "      save.write(nil)\n", "")
    assert _messages_without(fresh_redis, right, text)


def _messages_without(server: RedisServer, right: str, script: str) -> list[bytes]:
    client, other = ResourceClient(server), Subscriber(server)
    try:
        granted(client.write("mine"))
        waits(client, "theirs")
        server.ask("ACL", "SETUSER", "locks", *rules(), f"-{right}")
        wire = Wire(server.port)
        wire.ask([("AUTH", "locks", "password")])
        _, args = encode(client.keys, Release("mine"), "ourgate")
        (refused,) = wire.ask([("EVAL", script, *args)])
        wire.close()
        assert isinstance(refused, hiredis.ReplyError), refused
        return [
            text
            for text in other.heard_before(server, b"mark")
            if pushed_in(text.rpartition(b" ")[2])
        ]
    finally:
        server.ask("ACL", "DELUSER", "locks")
        other.close()
        client.close()


# ------------------------------------------------------------ other versions


def test_the_mark_of_an_older_writers_phase_is_stale(client: ResourceClient) -> None:
    """An older version granted the lock, and left the field as it was."""
    granted(client.write("mine"))
    fence = int(client.fields()["last"])
    client.ask("HSET", client.state, "pushed", fence - 1)
    assert not client.look().record.pushed
    waits(client, "theirs")
    assert not client.look().record.pushed
    assert "pushed" not in client.fields()


@pytest.mark.parametrize("ticket", ['a"b', "a\\b"])
def test_a_ticket_that_json_would_escape_is_not_stored(
    client: ResourceClient, ticket: str
) -> None:
    """Only a user's own can be such a one. It is woken as usual."""
    granted(client.write("mine"))
    waits(client, ticket)
    client.write(
        "next", client_id=OTHER, more=1, push=True, following=Claim(ticket, LEASE)
    )
    assert [p.ticket for p in client.look().record.queue] == ["next"]
    client.do(Renew((("mine", LEASE),)))


@pytest.mark.parametrize("lease", ["0", "9" * 20])
def test_a_damaged_claim_is_refused(client: ResourceClient, lease: str) -> None:
    granted(client.write("mine"))
    waits(client, "theirs")
    (member,) = client.ask("ZRANGE", client.queue, 0, -1)
    field = b"place:" + member
    stored = client.ask("HGET", client.state, field)
    damaged = stored.replace(b",%d," % LEASE, b",%s," % lease.encode())
    assert damaged != stored
    client.ask("HSET", client.state, field, damaged)
    before = client.fields()
    with pytest.raises(hiredis.ReplyError, match=r"^BADRECORD .*w:othergate"):
        client.release("mine")
    assert client.fields() == before


# ------------------------------------------------------------------ messages

KEY = "mutex_locks/order,7"
PUSHED = PushedGrant(3, 1, 2, proof_of("ticket", 1, 2, 3))
TEXT = f"1,2,3,{PUSHED.proof}"


def heard(payload: bytes, key: str = KEY) -> list[PushedGrant | None]:
    """Return the pushed grants that this message gives to a resource's waiters."""
    calls: list[PushedGrant | None] = []

    def wake(_: Resource, seconds: float, pushed: PushedGrant | None = None) -> None:
        assert seconds == 0
        calls.append(pushed)

    dispatcher = WakeupDispatcher(0, wake)
    dispatcher.watch(resource("order", 7), (key.encode(),))
    dispatcher.message(b"rwlock.wake/g", payload)
    return calls


def test_a_message_with_a_pushed_grant() -> None:
    assert heard(f"{KEY} {TEXT}".encode()) == [PUSHED]


def test_a_plain_message() -> None:
    assert heard(KEY.encode()) == [None]


def test_a_key_that_ends_like_a_pushed_grant() -> None:
    """The whole text is compared first."""
    key = f"{KEY} {TEXT}"
    assert heard(key.encode(), key) == [None]
    assert heard(f"{key} {TEXT}".encode(), key) == [PUSHED]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1,2,3", f"{TEXT},", f"{TEXT}\n", f" {TEXT}", TEXT.upper()),
        *(f"-{TEXT}", f"1,2,{TEXT}", "1,2,3," + "g" * 40, "1" * 18 + TEXT[1:]),
        *("¹,2,3," + "0" * 40, "1,2,3," + "0" * 39),
    ],
)
def test_odd_text_behind_the_key_is_nothing(text: str) -> None:
    """As any message about a key that is not watched."""
    assert heard(f"{KEY} {text}".encode()) == []
    assert heard(text.encode()) == []
    assert heard(b"\xff " + text.encode()) == []


def test_a_pushed_grant_of_another_key_is_nothing() -> None:
    assert heard(f"mutex_locks/order,8 {TEXT}".encode()) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("url", "min_replicas", "pushes"),
    [
        ("redis://h", 0, True),
        ("redis+sentinel://h/primary", 0, True),
        ("redis+cluster://h", 0, False),
        ("redis://h", 1, False),
    ],
)
async def test_which_servers_push(url: str, min_replicas: int, pushes: bool) -> None:
    """No replica has what a message says, and in a cluster a slot may move."""
    settings = StoreSettings("g", min_replicas=min_replicas)
    options = options_of(parse(url), connect_timeout=1, min_replicas=min_replicas)
    store = RedisStore(options, current_event_loop(), print, settings)
    assert store.poll_policy.pushes is pushes


@pytest.mark.anyio
async def test_a_prepared_command_is_sent_when_it_is_called(
    fresh_redis: RedisServer,
) -> None:
    async with connect(fresh_redis.url) as locks:
        store: Any = locks._session.client.store
        order = resource("order", 1)
        send = store.prepared(order, Acquire((Claim("one", LEASE),), Mode.WRITE))
        assert (await store.look(order)).record.grants == ()
        assert isinstance(await send(), Granted)
        assert [g.ticket for g in (await store.look(order)).record.grants] == ["one"]
        assert await store.prepared(order, Release("one"))() == Released(held=True)


@pytest.mark.usefixtures("other")
def test_a_pushed_grant_is_written_once(client: ResourceClient) -> None:
    """TIME, HMGET twice (plain.lua, too), ZRANGE, HGET, GET; HSET, SET; PUBLISH."""
    granted(client.write("mine"))
    waits(client, "theirs")
    assert client.calls(Release("mine")) == 9
    assert client.look().record.pushed
