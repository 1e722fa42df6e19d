"""Oracle's types as they travel, and what stands for them in PostgreSQL."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Context, Decimal
from enum import IntEnum
from typing import Any, NamedTuple

#: What a bind or a column holds: str, Decimal, datetime, float, bool, bytes or None.
Value = Any


_EXACT = Context(prec=50)  # a NUMBER has up to 40 digits


class Type(IntEnum):
    VARCHAR = 1
    NUMBER = 2
    INTEGER = 3
    LONG = 8
    DATE = 12
    RAW = 23
    LONG_RAW = 24
    CHAR = 96
    DOUBLE = 101
    CLOB = 112
    BLOB = 113
    TIMESTAMP = 180
    TIMESTAMP_TZ = 181
    TIMESTAMP_LTZ = 231
    BOOLEAN = 252


TEXTS = frozenset({Type.VARCHAR, Type.CHAR, Type.LONG, Type.CLOB})
_BYTES = frozenset({Type.RAW, Type.LONG_RAW, Type.BLOB})
_NUMBERS = frozenset({Type.NUMBER, Type.INTEGER})

#: The type a bind gets in PostgreSQL.
IN_POSTGRESQL: dict[int, str] = {
    Type.VARCHAR: "text",
    Type.CHAR: "text",
    Type.LONG: "text",
    Type.NUMBER: "numeric",
    Type.INTEGER: "numeric",
    Type.DATE: "timestamp",
    Type.TIMESTAMP: "timestamp",
    Type.TIMESTAMP_TZ: "timestamptz",
    Type.TIMESTAMP_LTZ: "timestamptz",
    Type.DOUBLE: "float8",
    Type.BOOLEAN: "boolean",
    Type.RAW: "bytea",
    Type.LONG_RAW: "bytea",
}


class Column(NamedTuple):
    """The description of a column for a client."""

    name: str
    type: Type
    size: int
    precision: int = 0
    scale: int = 0


class Shape(NamedTuple):
    type: Type
    size: int
    precision: int = 0
    scale: int = 0


_WHOLE = Shape(Type.NUMBER, 22, 38, 0)
_TEXT = Shape(Type.VARCHAR, 32767)
_SHAPES: dict[str, Shape] = {
    "numeric": Shape(Type.NUMBER, 22, 0, -127),
    "int2": _WHOLE,
    "int4": _WHOLE,
    "int8": _WHOLE,
    "bool": Shape(Type.BOOLEAN, 4),
    "float8": Shape(Type.DOUBLE, 8),
    "timestamp": Shape(Type.TIMESTAMP, 11, 0, 6),
    "timestamptz": Shape(Type.TIMESTAMP_TZ, 13, 0, 6),
    "bytea": Shape(Type.RAW, 2000),
    "date": Shape(Type.DATE, 7),
}


def column(name: str, postgresql: str) -> Column:
    """How a column of a PostgreSQL type is described."""
    return Column(name, *_SHAPES.get(postgresql, _TEXT))


def encode(kind: int, value: Value) -> bytes | None:
    """A value as it travels; the empty text is NULL, as everywhere in Oracle."""
    if value is None or value == "":
        return None
    if kind in TEXTS:
        return str(value).encode()
    if kind in _NUMBERS:
        return encode_number(Decimal(value))
    if kind == Type.DATE:
        return encode_time(value, 7)
    if kind in {Type.TIMESTAMP, Type.TIMESTAMP_LTZ}:
        return encode_time(value, 11)
    if kind == Type.TIMESTAMP_TZ:
        return encode_time(value, 13)
    if kind == Type.DOUBLE:
        return encode_double(value)
    if kind == Type.BOOLEAN:
        return b"\x01\x01" if value else b"\x00"
    return bytes(value)


def decode(kind: int, data: bytes | None) -> Value:
    if data is None:
        return None
    if kind in TEXTS:
        return data.decode()
    if kind in _NUMBERS:
        return decode_number(data)
    if kind in {Type.DATE, Type.TIMESTAMP}:
        return decode_time(data)
    if kind in {Type.TIMESTAMP_TZ, Type.TIMESTAMP_LTZ}:
        return decode_time(data).replace(tzinfo=UTC)
    if kind == Type.DOUBLE:
        return decode_double(data)
    if kind == Type.BOOLEAN:
        return data[:1] == b"\x01"
    return data


def encode_number(value: Decimal) -> bytes:
    """Base 100: the exponent first, then the digits; inverted when negative."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "neither NaN nor infinite"
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return b"\x80"
    if exponent % 2:
        text, exponent = text + "0", exponent - 1
    text = text.zfill(len(text) + len(text) % 2)
    pairs = [int(text[at : at + 2]) for at in range(0, len(text), 2)]
    power = len(pairs) + exponent // 2 - 1
    while not pairs[-1]:
        pairs.pop()
    if not sign:
        return bytes((193 + power, *(pair + 1 for pair in pairs)))
    end = b"\x66" if len(pairs) < 20 else b""
    return bytes((~(193 + power) & 0xFF, *(101 - pair for pair in pairs))) + end


def decode_number(data: bytes) -> Decimal:
    if data == b"\x80":
        return Decimal(0)
    positive = data[0] & 0x80
    power = (data[0] if positive else ~data[0] & 0xFF) - 193
    digits = data[1:]
    if not positive and digits.endswith(b"\x66"):
        digits = digits[:-1]
    number = 0
    for digit in digits:
        number = number * 100 + (digit - 1 if positive else 101 - digit)
    value = Decimal(number if positive else -number)
    return value.scaleb(2 * (power - len(digits) + 1), _EXACT)


def encode_time(value: datetime, size: int) -> bytes:
    """Of 7 bytes, with fractions of a second 11, with the zone (always UTC) 13."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC)
    data = bytes(
        (
            *(value.year // 100 + 100, value.year % 100 + 100),
            *(value.month, value.day),
            *(value.hour + 1, value.minute + 1, value.second + 1),
        )
    )
    if size >= 11:
        data += struct.pack(">I", value.microsecond * 1000)
    return data + b"\x14\x3c" if size == 13 else data


def decode_time(data: bytes) -> datetime:
    fraction = struct.unpack(">I", data[7:11])[0] // 1000 if len(data) >= 11 else 0
    year = (data[0] - 100) * 100 + data[1] - 100
    return datetime(  # noqa: DTZ001 - Oracle's TIMESTAMP knows no zone
        *(year, data[2], data[3], data[4] - 1, data[5] - 1, data[6] - 1, fraction)
    )


def encode_double(value: float) -> bytes:
    """Such that bytes sort as the numbers do."""
    data = struct.pack(">d", value)
    if data[0] & 0x80:
        return bytes(byte ^ 0xFF for byte in data)
    return bytes((data[0] | 0x80, *data[1:]))


def decode_double(data: bytes) -> float:
    if data[0] & 0x80:
        data = bytes((data[0] & 0x7F, *data[1:]))
    else:
        data = bytes(byte ^ 0xFF for byte in data)
    value: float = struct.unpack(">d", data)[0]
    return value
