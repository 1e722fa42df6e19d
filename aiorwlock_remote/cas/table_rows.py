"""Conversion of rows of the two published tables to doorman and mutex record and back.

The row of ``mutex_locks`` is the mutex record; it exists as long as the lock is taken.
The row of ``doormans`` has the published columns, which people and other programs read,
and this library's record with its version. Times are passed as text in UTC, to the
microsecond: ``2026-11-21 19:05:00.000001``.

The server chooses the fence of a new phase: the greater of the last fence plus one,
which the swap passes, and the server's own clock, which the swap's statement reads. So
the fence is above all earlier fences, also if the row was deleted or if a failover lost
the last grant (``tests/cas/test_failover.py``). A process must not choose the fence,
because its estimate of the server's time may be ahead of the server.

The stored text is the fence, a space, and the record as the process wrote it. The
reader replaces the record's ``last``, and the fence of its grants, by that fence. A
text without a fence has the older format, which counted the fences of a row from
``created_at``.
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
"""Records longer than this are compressed: 500 readers take 102 kB, or 28 kB."""
COMPRESSED_PREFIX = "z:"
FENCE_DIGITS = 19
VERSION_WITHOUT_RECORD_HINT = (
    "set its version to NULL as well, or delete its row of doormans"
)
BAD_ACQUIRED_AT_HINT = "correct or delete its row: acquired_at must be a time"
MAX_READERS_BYTES = 4_000
"""Bytes of the column ``active_readers``; readers that do not fit are left out."""

_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_MICRO = timedelta(microseconds=1)


@value
class StoredRow:
    """Value object: a database's answer to a ``look`` or ``swap`` request.

    If the swap was carried out, only ``done``, ``now`` and ``fence`` are given.
    """

    # The swap was carried out.
    done: bool
    # The server's clock.
    now: str
    # ``created_at``, version and text of the row in ``doormans``, if there is one.
    created: str | None = None
    version: str | None = None
    record: str | None = field(default=None, repr=False)
    # Ticket and ``acquired_at`` of the row in ``mutex_locks``, if there is one.
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    # The fence that the store chose in a swap that begins a phase.
    fence: int | None = None


@value
class VersionMark:
    """Value object: the stored version and mutex row that the next swap must find."""

    version: str | None
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    # The server's clock in the answer that brought it, in microseconds.
    now: int = field(default=0, compare=False)
    # How many swaps of this process in a row led to this version.
    calm: int = field(default=0, compare=False)


def state_of(found: StoredRow) -> StoredState:
    """Return the state in a database's answer, or raise ``BadRecord``."""
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
    # A row without a version was written by another program, by the published layout; a
    # version without a record is damage (tests/backends/postgresql/test_hostile.py).
    if found.record is None and found.version is not None:
        raise BadRecord(
            what="its row of doormans has a version but no record: was it edited by "
            "another program?",
            hint=VERSION_WITHOUT_RECORD_HINT,
        )
    if found.record is not None:
        record = load_record(found.record, found.created or "")
    mark = VersionMark(found.version, found.ticket, found.since, micros_of(found.now))
    return StoredState(record, seat, mark)


def load_record(text: str, created: str) -> Doorman:
    """Parse the stored text of a doorman.

    ``created``: the row's column ``created_at``; texts of the older format count their
    fences from it.

    Raises:
        BadRecord: The text cannot be read.
    """
    fence, space, rest = text.partition(" ")
    if (
        space
        and fence.isdecimal()
        and len(fence) <= FENCE_DIGITS
        and int(fence) < 2**63
    ):
        return with_fence(loads(decompress(rest)), int(fence))
    record = loads(decompress(text))
    if not record.last:
        return record
    # The format before counted all fences of a row from the row's creation. The new
    # fences must be above them (test_failover.py: test_a_row_of_the_version_before).
    base = micros_of(created)
    endings = tuple(replace(e, fence=e.fence + base) for e in record.endings)
    return with_fence(replace(record, endings=endings), record.last + base)


def with_fence(record: Doorman, fence: int) -> Doorman:
    """Return the record with ``fence`` as the fence of the current phase's grants.

    The ``endings`` (notes why grants ended early) keep the fences of earlier phases.
    """
    if fence == record.last:
        return record
    grants = tuple(replace(grant, fence=fence) for grant in record.grants)
    return replace(record, last=fence, grants=grants)


def dump_record(record: Doorman, *, begins: bool) -> str:
    """Return the doorman as text to store in the table, preceded by its last fence.

    ``begins``: a phase begins, so that the server writes the fence.
    """
    text = dumps(record)
    if len(text) > COMPRESS_FROM_BYTES:
        compressed = zlib.compress(text.encode(), 3)
        text = COMPRESSED_PREFIX + base64.b64encode(compressed).decode()
    return f" {text}" if begins else f"{record.last} {text}"


def decompress(text: str) -> str:
    """Return a stored record's JSON text, or raise ``BadRecord`` if it is damaged."""
    if not text.startswith(COMPRESSED_PREFIX):
        return text
    packed = text.removeprefix(COMPRESSED_PREFIX)
    try:
        return zlib.decompress(base64.b64decode(packed)).decode()
    except (binascii.Error, zlib.error, ValueError) as exc:
        raise BadRecord(what="the stored record cannot be decompressed") from exc


def seat_columns(seat: MutexRecord | None) -> tuple[str | None, str | None]:
    """Return the columns ``ticket`` and ``acquired_at``; both None if ``seat`` is."""
    if seat is None:
        return None, None
    seconds, _, rest = seat.value.rpartition(",")[2].partition(".")
    return seat.ticket, time_text(int(seconds) * MICROS + int(rest or 0))


def doorman_columns(record: Doorman) -> tuple[str, str | None]:
    """Return the columns ``active_readers`` and ``pending_writer`` of a doorman."""
    first = next((entry for entry in record.queue if entry.mode is Mode.WRITE), None)
    writer = None if first is None else f"{first.client_id},{first.since // MICROS}"
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
    """Parse a UTC time to microseconds since 1970; ``BadRecord`` if it is none."""
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MICRO
    except (ValueError, TypeError) as exc:  # TypeError: it has a time zone
        raise BadRecord(what=f"{text!r} is not a time") from exc


def time_text(micros: int) -> str:
    """Format microseconds since 1970 as UTC, like ``2026-11-21 19:05:00.000001``."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(" ", "microseconds")


def _unix_seconds(since: str) -> str:
    # This library writes whole seconds; other programs may write fractions.
    whole, rest = divmod(micros_of(since), MICROS)
    return f"{whole}.{rest:06}" if rest else str(whole)
