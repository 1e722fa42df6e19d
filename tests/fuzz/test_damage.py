"""Damage that the fuzzers, or those who wrote them, have found: typed errors only."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import hiredis
import pytest

from aiorwlock_remote.backends.files.record_file import unpack_record
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.codec import decode
from aiorwlock_remote.backends.redis.hiredis_reader import new_reader, next_reply
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.cas.table_cas import decompress
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.row import WRITE_LOCK, RowState
from aiorwlock_remote.core.row_grants import load_row_grants
from aiorwlock_remote.errors import BackendError, BadRecord, Unsupported
from tests.backends.redis.protocols import Talk
from tests.fuzz.targets import COMMANDS, ORDER, notify

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_file_whose_head_is_nested_without_end() -> None:
    with pytest.raises(BadRecord, match="damaged"):
        unpack_record(f"{DEEP}\nrecord\n".encode())


def test_a_record_that_unpacks_to_far_more() -> None:
    packer = zlib.compressobj(9)
    megabyte = bytes(1 << 20)
    parts = [packer.compress(megabyte) for _ in range(48)]
    packed = b"".join([*parts, packer.flush()])
    with pytest.raises(BadRecord, match="too long"):
        decompress("z:" + base64.b64encode(packed).decode())


def test_fields_of_later_versions_are_not_nested_too_deep() -> None:
    """A step would read such a record, and fail when it stores it again."""
    refused = []
    for depth in (1, 20, 49, 51, 100, 500, 900):
        nested = "[" * depth + "]" * depth
        text = dumps(Doorman())[:-1] + f',"later":{nested}}}'
        try:
            found = loads(text)
        except BadRecord:
            refused.append(depth)
        else:
            assert loads(within(40, partial(dumps, found))) == found
    assert refused == [51, 100, 500, 900]


def within(depth: int, function: Callable[[], str]) -> str:
    """Call a function from a deeper stack than the one that has read."""
    return function() if depth == 0 else within(depth - 1, function)


@pytest.mark.parametrize(
    "grants",
    [
        ["t1,read,9999999999999999,5", "t2,write,1,4"],
        ["t1,write,9999999999999999,5", "t2,write,1,4"],
        ["t1,write,9999999999999999,5", "t1,write,1,4"],
        ["t1,permit,9999999999999999,5"],
    ],
)
def test_a_row_whose_list_has_a_writer_beside_others(grants: list[str]) -> None:
    """When the one that has ended is taken out, the row would count as free."""
    text = ";".join(["1", "nonce", "5", "", *grants])
    assert load_row_grants(RowState(WRITE_LOCK, 0), text) is None


@pytest.mark.parametrize("name", ["\ud800", "\udcff\ud800", "a\udfff,b"])
def test_a_name_that_has_half_a_pair(name: str) -> None:
    """In a hint, or in JSON of another program."""
    assert "?" in Resource(name, "42").label


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_a_notification_with_a_number_that_is_none(number: str) -> None:
    notify(f'["order", 42, {number}, 1, 2, "x", "v", "r", "t"]'.encode())


@pytest.mark.parametrize(
    "reply",
    [
        [[0, 10**12, [b"h", 1]]],
        [[0, 16384, [b"h", 1]]],
        [[-5, 3, [b"h", 1]]],
        [[7, 3, [b"h", 1]]],
        [[0, 5, [b"h", 10**6]]],
        [[0, 5, [b"h", -1]]],
    ],
)
def test_a_slot_map_of_more_slots_than_there_are(reply: list[object]) -> None:
    slots = SlotMap([("seed", 1)])
    with pytest.raises(Unsupported, match="CLUSTER SLOTS"):
        slots.learn(reply, ("h", 1))
    assert slots.primaries == []


def test_a_holder_whose_description_is_nested_without_end() -> None:
    text = f"abc,0,{DEEP}".encode()
    with pytest.raises(BackendError, match="cannot be read"):
        decode(COMMANDS[0], [-1, 1, 500, 1, b"w" + text])
    state = [b"v", b"1", b"writer", b"t,1,never," + text, b"seat", b"t,1"]
    with pytest.raises(BadRecord, match="writer"):
        decode_look(ORDER, [1, None, -1, state, [], []])


@pytest.mark.parametrize("data", [b"%1\r\n%1\r\n+a\r\n:1\r\n:1\r\n", b"?"])
def test_replies_that_no_server_sends(data: bytes) -> None:
    reader = new_reader()
    reader.feed(data)
    with pytest.raises(hiredis.ProtocolError):
        next_reply(reader)


def test_a_reply_for_which_there_is_no_memory() -> None:
    class Reader:
        def feed(self, data: bytes) -> None: ...
        def gets(self) -> object:
            raise MemoryError

    talk = Talk()
    talk.talk._reader = cast("Any", Reader())
    call = talk.say("PING")
    talk.talk.received(b"*4294967295\r\n")
    assert isinstance(call.error, Unsupported)
    with pytest.raises(hiredis.ProtocolError):
        next_reply(cast("Any", Reader()))
