"""What the server answers, as messages."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.fields import Writer
from tests.servers.oracle.requests import BindType
from tests.servers.oracle.tokens import Bind
from tests.servers.oracle.values import TEXTS, Column, Value, encode

_UTF8 = 873

_ERROR = 4
_ROW_HEAD = 6
_ROW = 7
_PARAMETERS = 8
_STATUS = 9
_DIRECTIONS = 11
_DESCRIPTION = 16
_TOKEN = 33
_IN_TRANSACTION = 2


class Replies:
    """Writes them as a client of that version reads them."""

    def __init__(self, fields: int) -> None:
        self._fields = fields
        self.in_transaction = False

    @property
    def _flags(self) -> int:
        return _IN_TRANSACTION if self.in_transaction else 0

    def token(self, number: int) -> bytes:
        """In front of the answer to one call of a pipeline."""
        return Writer().octets(_TOKEN).numbers(number).done() if number else b""

    def status(self) -> bytes:
        return Writer().octets(_STATUS).numbers(self._flags, 0).done()

    def parameters(self, values: dict[str, tuple[str, int]]) -> bytes:
        writer = Writer().octets(_PARAMETERS).numbers(len(values))
        for name, (value, flags) in values.items():
            writer.text(name).text(value).numbers(flags)
        return writer.done()

    def end(
        self, error: OracleError | None = None, *, cursor: int = 0, rows: int = 0
    ) -> bytes:
        """What every answer ends with: an error, or that there is none."""
        number = error.number if error else 0
        writer = Writer().octets(_ERROR)
        writer.numbers(self._flags, 0, 0, number & 0xFFFF, 0, 0, cursor, 0)
        writer.raw(bytes(6))
        writer.numbers(0, 0).octets(0).numbers(0, 0)  # the row's identity
        writer.numbers(0).octets(0, 0).numbers(0, 0, 0, 0, 0, 0, number, rows)
        if self._fields >= 14:
            writer.numbers(0, 0)
        if error:
            writer.value(f"{error.message}\n".encode())
        return writer.done()

    def description(self, columns: Sequence[Column]) -> bytes:
        writer = Writer().octets(_DESCRIPTION, 0).numbers(0, len(columns))
        if columns:
            writer.octets(0)
        for place, column in enumerate(columns, start=1):
            self._column(writer, column, place)
        return writer.numbers(0, 0, 0, 0, 0, 0).done()

    def _column(self, writer: Writer, column: Column, place: int) -> None:
        text = column.type in TEXTS
        writer.octets(column.type, 0, column.precision & 0xFF, column.scale & 0xFF)
        writer.numbers(column.size, 0, 0, 0, 0, _UTF8 if text else 0)
        writer.octets(1 if text else 0).numbers(column.size if text else 0)
        if self._fields >= 8:
            writer.numbers(0)
        writer.octets(1, min(len(column.name), 30))
        writer.text(column.name).text("").text("").numbers(place, 0)
        if self._fields >= 17:
            writer.text("").text("")
        if self._fields >= 20:
            writer.numbers(0)
        if self._fields >= 24:
            writer.numbers(0).octets(0, 0)

    def rows(self, columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> bytes:
        writer = Writer()
        if rows:
            writer.octets(_ROW_HEAD, 0).numbers(0, 0, 0, 0, 0, 0)
        for row in rows:
            writer.octets(_ROW)
            for column, value in zip(columns, row, strict=True):
                writer.value(encode(column.type, value))
        return writer.done()

    def directions(self, binds: Sequence[Bind]) -> bytes:
        """Which binds of a block come back."""
        writer = Writer().octets(_DIRECTIONS, 0).numbers(len(binds), 0, 0, 0, 0, 0)
        return writer.octets(*(bind.direction for bind in binds)).done()

    def written(self, types: Sequence[BindType], values: Sequence[Value]) -> bytes:
        """The binds that come back from one execution of a block."""
        writer = Writer().octets(_ROW)
        for bind, value in zip(types, values, strict=True):
            data = encode(bind.kind, value)
            if data is not None and len(data) > bind.size:
                raise OracleError(
                    6502,
                    "PL/SQL: numeric or value error: character string buffer too small",
                )
            writer.value(data).numbers(0)
        return writer.done()

    def returned(
        self, types: Sequence[BindType], rows: Sequence[Sequence[Value]]
    ) -> bytes:
        """What RETURNING … INTO gives for one execution: a list for each bind."""
        writer = Writer().octets(_ROW)
        for place, bind in enumerate(types):
            writer.numbers(len(rows))
            for row in rows:
                writer.value(encode(bind.kind, row[place])).numbers(0)
        return writer.done()
