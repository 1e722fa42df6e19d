"""A resource in the two published tables ↔ the record and the seat the core knows.

The row of ``mutex_locks`` is the seat, there as long as it is taken. The row of
``doormans`` has the published columns, for people and other programs to read, and our
record and its version. Times travel as text, to the microsecond: ``2026-11-21
19:05:00.000001``, in UTC.

Fences are counted from ``created_at``, which the server's clock sets when it makes the
doorman's row: in the stored record the first phase of a row has the number 1. So the
fence of a new row is above those of all rows that were there before, whatever became of
them, and no process has to know the server's time for that. (A fence taken from a time
that a process believes in would be ahead of it by the process's error.)
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime, timedelta

from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.lease import MICROS
from aiorwlock_remote.core.record import Record, Seat
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.swapping.cas import State

LONG = 3_000
"""Bytes from which on a record is packed: 500 readers are 102 kB, packed 28 kB."""
PACKED = "z:"
HALF = "set its version to NULL as well, or delete its row of doormans"
TIMELESS = "mend or delete its row: acquired_at must be a time"
READERS = 4_000
"""Bytes of ``active_readers``; what does not fit is left out there, and only there."""

_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_MICRO = timedelta(microseconds=1)


@value
class Found:
    """What a store answers: whether the swap was carried out, and what stands there.

    ``now``: its clock. ``base``: ``created_at`` of the doorman's row; None: no such
    row. The rest is told only if nothing was done.
    """

    done: bool
    now: str
    base: str | None = None
    version: str | None = None
    record: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None


@value
class Mark:
    """What a swap compares. ``base`` and ``now``: microseconds.

    ``base``: what the fences of the stored record are counted from. ``now``: the
    server's clock when it told. ``calm``: swaps of ours in a row that led here.
    """

    version: str | None
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    base: int = field(default=0, compare=False)
    now: int = field(default=0, compare=False)
    calm: int = field(default=0, compare=False)


def state_of(found: Found) -> State:
    """What stands there.

    Raises:
        BadRecord: the record cannot be read.
    """
    seat, record, base = None, None, 0
    if found.ticket is not None:
        if found.since is None:  # e.g. 'infinity', or a time before Christ
            raise BadRecord(
                what="acquired_at of the row in mutex_locks is not a time of the years "
                "1 to 9999",
                hint=TIMELESS,
            )
        seat = Seat(f"{found.ticket},{_seconds(found.since)}")
    if found.record is None and found.version is not None:
        raise BadRecord(what="a version stands there, and no record", hint=HALF)
    if found.record is not None:
        base = micros_of(found.base or "")
        record = counted(loads(unpacked(found.record)), base)
    mark = Mark(found.version, found.ticket, found.since, base, micros_of(found.now))
    return State(record, seat, mark)


def counted(record: Record, base: int) -> Record:
    """The record with its fences counted from ``base``; 0 stays, it is none."""

    def moved(fence: int) -> int:
        return fence + base if fence else 0

    if not base:
        return record
    grants = tuple(replace(g, fence=moved(g.fence)) for g in record.grants)
    endings = tuple(replace(e, fence=moved(e.fence)) for e in record.endings)
    return replace(record, last=moved(record.last), grants=grants, endings=endings)


def text_of(record: Record, base: int) -> str:
    """The record as it is stored, its fences counted from 1 again."""
    text = dumps(record, base)
    if len(text) <= LONG:
        return text
    return PACKED + base64.b64encode(zlib.compress(text.encode(), 3)).decode()


def unpacked(text: str) -> str:
    """The JSON text of a stored record.

    Raises:
        BadRecord: it is none.
    """
    if not text.startswith(PACKED):
        return text
    try:
        return zlib.decompress(base64.b64decode(text.removeprefix(PACKED))).decode()
    except (binascii.Error, zlib.error, ValueError) as exc:
        raise BadRecord(what="the stored record cannot be unpacked") from exc


def seat_columns(seat: Seat | None) -> tuple[str | None, str | None]:
    """``ticket`` and ``acquired_at`` of a seat."""
    if seat is None:
        return None, None
    seconds, _, rest = seat.value.rpartition(",")[2].partition(".")
    return seat.ticket, text_at(int(seconds) * MICROS + int(rest or 0))


def published(record: Record) -> tuple[str, str | None]:
    """``active_readers`` and ``pending_writer`` as the published doorman has them."""
    pending = next((p for p in record.queue if p.mode is Mode.WRITE), None)
    writer = None if pending is None else f"{pending.gate},{pending.since // MICROS}"
    return "{" + ",".join(_readers(record)) + "}", writer


def _readers(record: Record) -> Iterator[str]:
    left = READERS - len("{}")
    for grant in record.grants:
        if grant.mode is Mode.READ:
            entry = f"{json.dumps(grant.ticket)}:{grant.since // MICROS}"
            left -= len(entry) + 1
            if left < 0:
                return
            yield entry


def micros_of(text: str) -> int:
    """Microseconds since 1970 of a time as text.

    Raises:
        BadRecord: it is none.
    """
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MICRO
    except (ValueError, TypeError) as exc:  # the latter: it has a zone
        raise BadRecord(what=f"{text!r} is not a time") from exc


def text_at(micros: int) -> str:
    """A time as text."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(" ", "microseconds")


def _seconds(since: str) -> str:
    """Unix seconds as they stand in a seat's value; ours are whole."""
    whole, rest = divmod(micros_of(since), MICROS)
    return f"{whole}.{rest:06}" if rest else str(whole)
