"""Values as Oracle writes them: there and back, and some known by heart."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.oracle import values
from tests.servers.oracle.fields import NeedMore, Reader, Writer
from tests.servers.oracle.values import Type

# Documented examples of Oracle's NUMBER (as DUMP shows it).
NUMBERS = {
    0: "80",
    1: "c102",
    10: "c10b",
    100: "c202",
    123: "c20218",
    -1: "3e6466",
    -123: "3d644e66",
    Decimal("0.5"): "c033",
}
moments = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("value", "data"), NUMBERS.items())
def test_known_numbers(value: Decimal | int, data: str) -> None:
    assert values.encode_number(Decimal(value)).hex() == data
    assert values.decode_number(bytes.fromhex(data)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, max_value=10**20))
def test_numbers(value: Decimal) -> None:
    if abs(value) > 10**30:
        return
    assert values.decode_number(values.encode_number(value)) == value


@given(st.integers(-(10**36), 10**36))
def test_whole_numbers(value: int) -> None:
    assert values.decode_number(values.encode_number(Decimal(value))) == value


@given(moments)
def test_times(value: datetime) -> None:
    assert values.decode_time(values.encode_time(value, 11)) == value
    seconds = values.decode_time(values.encode_time(value, 7))
    assert seconds == value.replace(microsecond=0)
    zoned = value.replace(tzinfo=UTC)
    data = values.encode(Type.TIMESTAMP_TZ, zoned)
    assert values.decode(Type.TIMESTAMP_TZ, data) == zoned


@given(st.floats(allow_nan=False))
def test_doubles_sort_as_their_bytes(value: float) -> None:
    data = values.encode_double(value)
    assert values.decode_double(data) == value
    assert (data < values.encode_double(1.5)) == (value < 1.5)


def test_the_empty_text_is_nothing() -> None:
    assert values.encode(Type.VARCHAR, "") is None
    assert values.decode(Type.VARCHAR, None) is None


@given(st.binary(min_size=1, max_size=70000), st.integers(-(2**63), 2**63))
def test_fields(data: bytes, number: int) -> None:
    written = Writer().value(data).numbers(number, -number).text("ü").done()
    reader = Reader(written)
    assert reader.value() == data
    assert reader.numbers(2) == [number, -number]
    assert reader.text() == "ü"
    assert reader.at == len(written)


@given(st.binary(min_size=1, max_size=600), st.data())
def test_a_message_cut_short_needs_more(data: bytes, draw: st.DataObject) -> None:
    written = Writer().numbers(12345).value(data).done()
    cut = draw.draw(st.integers(0, len(written) - 1))
    reader = Reader(written[:cut])
    with pytest.raises(NeedMore):
        reader.number() and reader.value()
