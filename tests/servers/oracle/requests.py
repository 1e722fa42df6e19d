"""What a client asks for, read from its messages.

A message does not tell its length: it is read field by field, and again from its start
when a packet was missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.servers.oracle.errors import OracleError, unsupported
from tests.servers.oracle.fields import Reader
from tests.servers.oracle.functions import Function, skip
from tests.servers.oracle.tokens import Statement, analysed
from tests.servers.oracle.values import Type, Value, decode

# Options of an execution; one that does not execute only parses.
EXECUTES = 0x20
COMMITS = 0x100
_COLLECTS_ERRORS = 0x80000
# Among the flags of an execution.
_SCROLLS = 0x2
_COUNTS_EACH = 0x4000

_FUNCTIONS = frozenset(Function)
_PIGGYBACK = 17
_ONE_WAY = 26
_ROW = 7
_LONG = 32767
_SET_TO_NULL = b"\xfd\x01"


@dataclass(frozen=True, slots=True)
class BindType:
    kind: int
    size: int


Row = dict[int, Value]  # by the place of the bind


class Known(Protocol):
    """What must be known of a cursor to read what it is executed with again."""

    sql: str
    statement: Statement
    binds: list[BindType]


@dataclass(slots=True)
class Call:
    """One message of the client's; those behind it in the packet are others.

    ``new``: it brings its statement along.
    """

    function: int
    token: int
    one_way: bool
    closed: list[int] = field(default_factory=list[int])
    pipeline: int | None = None
    options: int = 0
    cursor: int = 0
    sql: str = ""
    new: bool = False
    parse_only: bool = False
    statement: Statement | None = None
    binds: list[BindType] = field(default_factory=list[BindType])
    rows: list[Row] = field(default_factory=list[Row])
    fetch: int = 0


class Requests:
    """Reads calls as a client of that version writes them."""

    def __init__(self, fields: int, cursors: Mapping[int, Known]) -> None:
        self._fields = fields
        self._cursors = cursors
        #: Of the call that was read last, as far as it was.
        self.token: int = 0

    def read(self, reader: Reader) -> Call:
        self.token = 0
        closed: list[int] = []
        pipeline: int | None = None
        while (kind := reader.byte()) == _PIGGYBACK:
            function = reader.byte()
            reader.byte()
            self._token(reader)
            if function == Function.CLOSE_CURSORS:
                reader.byte()
                closed += reader.numbers(reader.number())
            elif function == Function.PIPELINE_BEGIN:
                reader.number()
                reader.byte()
                pipeline = reader.byte()
            else:
                skip(reader, function)
        function = reader.byte()
        reader.byte()
        token = self.token = self._token(reader)
        if function not in _FUNCTIONS:
            raise unsupported(f"network function {function}")
        call = Call(function, token, kind == _ONE_WAY, closed, pipeline)
        if function == Function.EXECUTE:
            self._execute(reader, call)
        elif function in {Function.REEXECUTE, Function.REEXECUTE_FETCH}:
            self._again(reader, call)
        elif function == Function.FETCH:
            call.cursor, call.fetch = reader.number(), reader.number()
        elif function == Function.PIPELINE_END:
            reader.number()
        return call

    def _token(self, reader: Reader) -> int:
        return reader.number() if self._fields >= 18 else 0

    def _cursor(self, number: int) -> Known:
        try:
            return self._cursors[number]
        except KeyError:
            raise OracleError(1001, "invalid cursor") from None

    def _execute(self, reader: Reader, call: Call) -> None:
        call.options, call.cursor = reader.number(), reader.number()
        has_sql = reader.byte()
        reader.number()
        reader.byte()
        reader.number()
        reader.skip(2)
        reader.number()
        call.fetch = reader.number()
        reader.number()
        reader.byte()
        count = reader.number()
        reader.skip(5)
        reader.byte()
        defined = reader.number()
        reader.number()
        reader.skip(3)
        reader.number()
        reader.byte()
        reader.numbers(2)
        reader.byte()
        reader.number()
        reader.byte()
        if self._fields >= 8:
            for _ in range(2):
                reader.byte()
                reader.number()
            reader.byte()
            if self._fields >= 9:
                reader.byte()
                reader.number()
        call.parse_only = not call.options & EXECUTES
        if has_sql:
            call.sql, call.new = (reader.value() or b"").decode(), True
        else:
            call.sql = self._cursor(call.cursor).sql
        settings = reader.numbers(13)
        _check_options(call.options, settings[9])
        executions = 1 if settings[7] else max(settings[1], 1)
        call.statement = analysed(call.sql)
        call.binds = [self._bind_type(reader) for _ in range(count)]
        for _ in range(defined):
            self._bind_type(reader)
        returning = [bind.returning for bind in call.statement.binds]
        sent = [n for n in range(count) if not returning[n]]
        call.rows = _rows(reader, call, sent, executions)

    def _again(self, reader: Reader, call: Call) -> None:
        call.cursor, number = reader.number(), reader.number()
        _, commits = reader.numbers(2)
        known = self._cursor(call.cursor)
        call.options = COMMITS if commits & 1 else 0
        call.fetch = number
        call.sql, call.statement, call.binds = known.sql, known.statement, known.binds
        fetches = call.function == Function.REEXECUTE_FETCH
        executions = 1 if fetches else max(number, 1)
        binds = known.statement.binds
        sent = [n for n, bind in enumerate(binds) if bind.sent]
        call.rows = _rows(reader, call, sent, executions)

    def _bind_type(self, reader: Reader) -> BindType:
        kind = reader.byte()
        reader.skip(3)
        size = reader.number()
        if reader.number():
            raise unsupported("arrays as binds")
        reader.number()
        if reader.number():  # an object's identity
            reader.value()
        reader.numbers(2)
        reader.byte()
        reader.number()
        if self._fields >= 8:
            reader.number()
        return BindType(kind, size)


def _check_options(options: int, flags: int) -> None:
    if options & _COLLECTS_ERRORS:
        raise unsupported("batcherrors")
    if flags & _COUNTS_EACH:
        raise unsupported("arraydmlrowcounts")
    if flags & _SCROLLS:
        raise unsupported("scrollable cursors")


def _rows(reader: Reader, call: Call, sent: list[int], executions: int) -> list[Row]:
    """The values of each execution; in SQL, not in PL/SQL, long ones come last."""
    if not sent:
        return [{} for _ in range(executions)]
    assert call.statement is not None
    binds = call.binds
    order = sent
    if call.statement.kind != "plsql":
        order = sorted(sent, key=lambda n: binds[n].size > _LONG)
    rows: list[Row] = []
    for _ in range(executions):
        if reader.byte() != _ROW:
            raise OracleError(3120, "two-task conversion routine: no row of binds")
        rows.append({n: _value(reader, binds[n].kind) for n in order})
    return rows


def _value(reader: Reader, kind: int) -> Value:
    if kind == Type.BOOLEAN and reader.startswith(_SET_TO_NULL):
        reader.skip(2)
        return None
    if kind in {Type.CLOB, Type.BLOB}:
        raise unsupported("LOBs as binds")
    return decode(kind, reader.value())
