"""What the scripts leave in the server, and what they cost it."""

from __future__ import annotations

import hiredis
import pytest

from aiorwlock_remote.core.commands import (
    Downgrade,
    Release,
    Released,
    Renew,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BadRecord
from tests.backends.redis.one_resource import (
    CLIENT_ID,
    LEASE,
    SECOND,
    ResourceClient,
    acquire,
    granted,
)

READ, WRITE = Mode.READ, Mode.WRITE
HOUR = 3_600_000


# ------------------------------------------------------------------- layout


def test_the_published_record_of_a_writer(client: ResourceClient) -> None:
    reply = granted(client.write("gluww"))
    assert client.seat == "mutex_locks/foobar,123"
    assert client.ask("GET", client.seat) == b"gluww,%d" % (reply.now // SECOND)
    ends = reply.now + LEASE
    assert client.ask("PEXPIRETIME", client.seat) == -(-ends // 1000), "never too early"
    fields = client.fields()
    assert fields["v"] == "1"
    assert fields["last"] == str(reply.grants[0].fence)
    assert fields["writer"].startswith(f"gluww,{reply.now},{ends},")
    assert set(fields) == {"v", "last", "seat", "writer", "created", "updated", "keep"}
    assert client.release("gluww") == Released(held=True)
    assert client.ask("EXISTS", client.seat) == 0
    assert set(client.fields()) == {"v", "last", "created", "updated", "keep"}


def test_the_published_record_of_readers(client: ResourceClient) -> None:
    first = granted(client.read("r1"))
    granted(client.read("r2", lease=2 * LEASE))
    assert client.ask("GET", client.seat) == b"readers,%d" % (first.now // SECOND)
    snapshot = client.look()
    last = max(g.expires or 0 for g in snapshot.record.grants)
    assert client.ask("PEXPIRETIME", client.seat) == -(-last // 1000)
    assert client.ask("ZCARD", client.readers) == 2
    client.release("r2")
    assert client.ask("PEXPIRETIME", client.seat) == -(-(first.now + LEASE) // 1000)
    client.release("r1")
    keys = (client.seat, client.readers)
    assert client.ask("EXISTS", *keys) == 0


# --------------------------------------------------------------- how long


def test_a_record_outlives_its_grants_by_the_fence_memory(
    client: ResourceClient,
) -> None:
    reply = granted(client.write("w"))
    ends = (reply.now + LEASE) // 1000
    for _ in range(2):
        life = client.ask("PEXPIRETIME", client.state)
        assert ends + HOUR <= life <= ends + HOUR * 5 // 4 + 1
        client.release("w")
        reply = granted(client.write("w"))
    client.do(Renew((("w", 100 * LEASE),)))
    renewed = (reply.now + 100 * LEASE) // 1000
    assert client.ask("PEXPIRETIME", client.state) >= renewed + HOUR


def test_every_key_of_a_waiting_crowd_ends(client: ResourceClient) -> None:
    client.read("r1", "r2")
    client.write("w", client_id="other")
    for key in (client.state, client.readers, client.queue):
        assert client.ask("PEXPIRETIME", key) > 0, key


def test_a_lease_that_never_ends_keeps_everything(client: ResourceClient) -> None:
    granted(client.write("w"))
    client.write("q", client_id="other")
    client.release("w")
    granted(client.write("q", client_id="other", lease=None))
    for key in (client.seat, client.state):
        assert client.ask("PEXPIRETIME", key) == -1, key
    client.release("q")
    assert client.ask("PEXPIRETIME", client.state) > 0, "not for ever"


def test_fences_rise_though_the_record_is_lost(client: ResourceClient) -> None:
    fences: list[int] = []
    for lose in (("DEL", client.state), ("FLUSHALL",), ("PING",)):
        fences.append(granted(client.write("w")).grants[0].fence)
        client.release("w")
        client.ask(*lose)
    assert fences == sorted(set(fences))


def test_a_release_compares_the_seat_if_the_record_is_lost(
    client: ResourceClient,
) -> None:
    granted(client.write("w"))
    client.ask("DEL", client.state)
    assert client.release("other") == Released(held=False, reason="forced")
    assert isinstance(client.write("q", client_id="q"), Waiting)
    assert client.release("w") == Released(held=True)
    assert client.ask("EXISTS", client.seat) == 0


def test_lost_readers_leave_a_seat_that_nobody_may_take(client: ResourceClient) -> None:
    """Part of a record lost (an eviction): fail closed until the seat runs out."""
    granted(client.read("r"))
    client.ask("DEL", client.readers)
    assert isinstance(client.write("w"), Waiting)
    assert client.ask("EXISTS", client.seat) == 1


# ------------------------------------------------------- what is not ours


def test_unknown_fields_are_kept(client: ResourceClient) -> None:
    granted(client.write("w"))
    client.ask("HSET", client.state, "future", "x")
    client.write("q", client_id="other")
    client.release("w")
    client.do(Withdraw("other", WRITE))
    granted(client.read("r"))
    assert client.fields()["future"] == "x"
    assert client.look().record.extra == (("future", "x"),)


def test_unknown_fields_alone_are_an_empty_record(client: ResourceClient) -> None:
    client.ask("HSET", client.state, "future", "x")
    record = client.look().record
    assert (record.last, record.extra) == (0, (("future", "x"),))
    granted(client.write("w"))
    assert client.fields()["future"] == "x"


@pytest.mark.parametrize(
    "fields",
    [("v", "2"), ("v", "1", "last", "x"), ("v", "1", "writer", "w"), ("last", "5")],
)
def test_a_record_we_do_not_understand_is_refused(
    client: ResourceClient, fields: tuple[str, ...]
) -> None:
    client.ask("HSET", client.state, *fields)
    before = client.dump()
    commands = (acquire(WRITE, "w"), acquire(READ, "r"), Release("w"))
    for command in (*commands, Withdraw(CLIENT_ID, WRITE, ("w",)), Renew((("w", 5),))):
        with pytest.raises(hiredis.ReplyError, match=r"^BADRECORD "):
            client.do(command)
    with pytest.raises(BadRecord):
        client.look()
    assert client.dump() == before


@pytest.mark.parametrize("part", ["seat", "state", "readers", "queue"])
@pytest.mark.parametrize("used", [False, True])
def test_a_key_of_another_type_is_refused(
    client: ResourceClient, part: str, used: bool
) -> None:
    if used:
        granted(client.write("w"))
        client.release("w")
    key = getattr(client, part)
    client.ask("DEL", key)
    client.ask("RPUSH", key, "a list")
    before = client.dump()
    commands = [
        acquire(READ, "r"),
        acquire(READ, "r", "s"),
        acquire(READ, "r", lease=5),
    ]
    if part in ("seat", "state") or not used:
        commands.append(acquire(WRITE, "w"))
    for command in commands:
        if part == "queue" and used and len(command.claims) == 1:
            continue  # not looked at by the short cut, and not needed
        with pytest.raises(hiredis.ReplyError, match=r"^BADRECORD ") as caught:
            client.do(command)
        assert f" {key} is not a " in str(caught.value)
        assert client.dump() == before


def test_an_illegal_move_changes_nothing(client: ResourceClient) -> None:
    granted(client.read("r"))
    before = client.dump()
    claim = acquire(READ, "x").claims[0]
    with pytest.raises(hiredis.ReplyError, match=r"^ILLEGAL only a writer"):
        client.do(Downgrade("r", claim))
    assert client.dump() == before


# ---------------------------------------------------------------- waking


def test_the_caller_is_woken_by_its_reply_and_others_by_message(
    client: ResourceClient,
) -> None:
    granted(client.write("w"))
    client.write("mine")
    client.release("w")
    rung = [client.rung]
    granted(client.write("mine"))
    rung.append(client.rung)
    client.write("next", client_id="gone")
    client.write("after")
    client.release("mine")
    # Nobody hears for the first, it is passed over.
    assert [*rung, client.rung] == [True, False, True]
    first, second = client.look().record.queue
    assert (first.client_id, second.client_id) == ("gone", CLIENT_ID)
    assert first.claim_until is not None
    assert second.claim_until is not None
    assert first.claim_until < second.claim_until
