"""The bytes of etcd's messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.messages import fields, integer, message, text

READERS: tuple[Callable[[bytes], object], ...] = (
    messages.parse_range,
    messages.parse_transaction,
    messages.parse_watch,
    messages.parse_status,
    messages.parse_lease_id,
    messages.parse_token,
    messages.parse_alarms,
)


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**20))
def test_a_number_is_read_as_it_was_written(content: int, number: int) -> None:
    written = integer(number, content)
    assert list(fields(written)) == ([(number, content)] if content else [])


@given(st.binary(max_size=300))
def test_so_are_bytes(content: bytes) -> None:
    assert list(fields(message(7, content))) == [(7, content)]


def test_fields_of_other_kinds_are_passed_over() -> None:
    """Fixed 64 and 32 bits, as a newer server may send."""
    strange = bytes([9 << 3 | 1]) + bytes(8) + bytes([10 << 3 | 5]) + bytes(4)
    header = message(1, integer(3, 17))
    assert messages.parse_range(strange + header).revision == 17


@pytest.mark.parametrize("parse", READERS, ids=lambda parse: parse.__name__)
@given(data=st.binary(max_size=60))
def test_damage_raises_one_error(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except ValueError:
        return


def test_what_is_cut_off_is_refused() -> None:
    key_value = text(1, b"k") + integer(3, 5) + text(5, b"v")
    whole = message(1, integer(3, 9)) + message(2, key_value)
    assert messages.parse_range(whole).found[0].content == b"v"
    for size in range(len(whole)):
        try:
            found = messages.parse_range(whole[:size]).found
        except ValueError:
            continue
        assert found == ()


def test_a_ticket_is_not_shown() -> None:
    found = messages.KeyValue(b"/mutex_locks/order,42", 3, b"secret,1764380000")
    assert "secret" not in repr(found)
    assert "secret" not in repr(messages.RangeResponse(1, 3, (found,), more=False))
