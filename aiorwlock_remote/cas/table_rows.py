"""A resource in the two published tables ↔ the record and the seat the core knows.

The row of ``mutex_locks`` is the seat, there as long as it is taken. The row of
``doormans`` has the published columns, for people and other programs to read, and our
record and its version. Times travel as text, to the microsecond: ``2026-11-21
19:05:00.000001``, in UTC.

The server chooses the fence of a new phase: the greater of the last fence plus one,
which the swap brings along, and its own clock, which the swap's statement reads. So the
fence is above all that were handed out before, also if the row was deleted or if a
failover lost the last grant (``tests/cas/test_failover.py``). A process must not
choose the fence: the time that a process believes in may be ahead of the server's.

So the stored text is the fence, a space, and the record as the process made it: its
``last``, and the fence of its grants, are read as that fence. A text without a fence is
of the version before, which counted the fences of a row from ``created_at``.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime, timedelta

from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BadRecord

COMPRESS_FROM_BYTES = 3_000
"""Bytes from which on a record is packed: 500 readers are 102 kB, packed 28 kB."""
COMPRESSED_PREFIX = "z:"
FENCE_DIGITS = 19
"""Digits of a fence, at most."""
VERSION_WITHOUT_RECORD_HINT = (
    "set its version to NULL as well, or delete its row of doormans"
)
BAD_ACQUIRED_AT_HINT = "mend or delete its row: acquired_at must be a time"
MAX_READERS_BYTES = 4_000
"""Bytes of ``active_readers``; what does not fit is left out there, and only there."""

_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_MICRO = timedelta(microseconds=1)


@value
class StoredRow:
    """What a store answers: whether the swap was carried out, and what stands there.

    ``now``: its clock. ``fence``: what a swap that was done and begins a phase has
    stored. The rest is told only if nothing was done. ``created``: ``created_at`` of
    the doorman's row; None: no such row.
    """

    done: bool
    now: str
    created: str | None = None
    version: str | None = None
    record: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    fence: int | None = None


@value
class VersionMark:
    """What a swap compares.

    ``now``: the server's clock when it told, in microseconds. ``calm``: swaps of ours
    in a row that led here.
    """

    version: str | None
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    now: int = field(default=0, compare=False)
    calm: int = field(default=0, compare=False)


def state_of(found: StoredRow) -> StoredState:
    """What stands there.

    Raises:
        BadRecord: the record cannot be read.
    """
    seat, record = None, None
    if found.ticket is not None:
        try:
            since = _unix_seconds(found.since or "")  # None: infinity, or before Christ
        except BadRecord as exc:
            raise BadRecord(
                what="acquired_at of the row in mutex_locks is not a time of the years "
                "1 to 9999",
                hint=BAD_ACQUIRED_AT_HINT,
            ) from exc
        seat = MutexRecord(f"{found.ticket},{since}")
    if found.record is None and found.version is not None:
        raise BadRecord(
            what="a version stands there, and no record",
            hint=VERSION_WITHOUT_RECORD_HINT,
        )
    if found.record is not None:
        record = load_record(found.record, found.created or "")
    mark = VersionMark(found.version, found.ticket, found.since, micros_of(found.now))
    return StoredState(record, seat, mark)


def load_record(text: str, created: str) -> Doorman:
    """The record of a stored text.

    Raises:
        BadRecord: the text cannot be read.
    """
    fence, behind, rest = text.partition(" ")
    if (
        behind
        and fence.isdecimal()
        and len(fence) <= FENCE_DIGITS
        and int(fence) < 2**63
    ):
        return with_fence(loads(decompress(rest)), int(fence))
    record = loads(decompress(text))
    if not record.last:
        return record
    # The version before this one counted all fences of a row from its creation.
    base = micros_of(created)
    endings = tuple(replace(e, fence=e.fence + base) for e in record.endings)
    return with_fence(replace(record, endings=endings), record.last + base)


def with_fence(record: Doorman, fence: int) -> Doorman:
    """The record if the store chose that fence for its phase.

    All live grants are of that phase. Endings are of phases before.
    """
    if fence == record.last:
        return record
    grants = tuple(replace(grant, fence=fence) for grant in record.grants)
    return replace(record, last=fence, grants=grants)


def dump_record(record: Doorman, *, begins: bool) -> str:
    """The record as it is stored; without its fence if a phase ``begins``."""
    text = dumps(record)
    if len(text) > COMPRESS_FROM_BYTES:
        text = (
            COMPRESSED_PREFIX
            + base64.b64encode(zlib.compress(text.encode(), 3)).decode()
        )
    return f" {text}" if begins else f"{record.last} {text}"


def decompress(text: str) -> str:
    """The JSON text of a stored record.

    Raises:
        BadRecord: it is none.
    """
    if not text.startswith(COMPRESSED_PREFIX):
        return text
    try:
        return zlib.decompress(
            base64.b64decode(text.removeprefix(COMPRESSED_PREFIX))
        ).decode()
    except (binascii.Error, zlib.error, ValueError) as exc:
        raise BadRecord(what="the stored record cannot be unpacked") from exc


def seat_columns(seat: MutexRecord | None) -> tuple[str | None, str | None]:
    """``ticket`` and ``acquired_at`` of a seat."""
    if seat is None:
        return None, None
    seconds, _, rest = seat.value.rpartition(",")[2].partition(".")
    return seat.ticket, time_text(int(seconds) * MICROS + int(rest or 0))


def doorman_columns(record: Doorman) -> tuple[str, str | None]:
    """``active_readers`` and ``pending_writer`` as the published doorman has them."""
    pending = next((p for p in record.queue if p.mode is Mode.WRITE), None)
    writer = (
        None if pending is None else f"{pending.client_id},{pending.since // MICROS}"
    )
    return "{" + ",".join(_reader_entries(record)) + "}", writer


def _reader_entries(record: Doorman) -> Iterator[str]:
    left = MAX_READERS_BYTES - len("{}")
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


def time_text(micros: int) -> str:
    """A time as text."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(" ", "microseconds")


def _unix_seconds(since: str) -> str:
    """Unix seconds as they stand in a seat's value; ours are whole."""
    whole, rest = divmod(micros_of(since), MICROS)
    return f"{whole}.{rest:06}" if rest else str(whole)
