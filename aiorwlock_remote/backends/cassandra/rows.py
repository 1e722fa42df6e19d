"""Rows of the lock table: parsing of rows, and the statements that change them.

The published mutex record (*seat* in the code) has the value ``ticket,seconds``. In
rows of the published program the seconds have a fraction; ours are whole.

A row's first fence is the Paxos timestamp of the transaction that made the row
(``ballot`` in the code; ``docs/stores/cassandra.md``); each later one is higher by one.
The servers choose the timestamp, so the first grant is stored with the *provisional*
fence 1 until a process that has read the timestamp computes the true fence
(``settled``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.backends.cassandra.session_client import Row
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BadRecord

# Fences below are provisional. A ballot is in microseconds since 1970, and larger.
PROVISIONAL_LIMIT = 1 << 32

# Seconds between attempts while a row does not show when it will be whole again.
RETRY_INTERVAL = 0.25

# Seconds for which a placeholder, a row with nothing but a version, refuses a request
# that was lost on its way and may still be carried out (test_tombstones.py).
PLACEHOLDER_SECONDS = 15

# In a record: until when its row must not be left empty. The name is stored.
PLACEHOLDER_UNTIL = "burnt_until"

# Values that neither `record` nor `frame` ever has, for conditions that always hold.
NEVER_STORED = "", -1

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLI = timedelta(milliseconds=1)


@value
class CassandraRow:
    """A row of the lock table. If there is no row, every field is None.

    ``ticket`` and ``since`` (ms since 1970) are the published mutex record. ``frame``
    (the row's own time) and ``record.updated`` (the writer's wall clock) say when the
    row was written.
    """

    version: UUID | None = None
    ticket: str | None = field(default=None, repr=False)
    since: int | None = None
    record: Doorman | None = None
    frame: int | None = None

    @property
    def seat(self) -> MutexRecord | None:
        """The published mutex record without its lease; None if there is none."""
        if self.ticket is None:
            return None
        return MutexRecord(f"{self.ticket},{_format_seconds(self.since or 0)}")

    @property
    def condition(self) -> tuple[UUID | None, str | None, int | None]:
        """The values that a change compares: version, ticket, ``acquired_at`` (ms)."""
        return self.version, self.ticket, self.since

    @property
    def ours(self) -> bool:
        """Whether this library wrote the mutex record: ``record`` names it, too."""
        seat = self.seat
        return (
            seat is not None
            and self.record is not None
            and seat.value == self.record.seat
        )

    @property
    def settled(self) -> bool:
        """Whether the fences are final, not provisional ones (1, 2, …)."""
        return self.record is None or not 0 < self.record.last < PROVISIONAL_LIMIT


NO_ROW = CassandraRow()


def parse_row(row: Row | None) -> CassandraRow:
    """Parse a row as returned by a read, or by a transaction that was refused.

    Provisional fences (1, 2, …) are replaced by true ones if the row shows the Paxos
    timestamp from which they are counted. Raises ``BadRecord`` if the record is
    damaged, or if the time at which it was written is missing.
    """
    if row is None or "record" not in row:  # a refusal by an empty row has no columns
        return NO_ROW
    at, text, frame = row["acquired_at"], row["record"], row["frame"]
    # With such a frame `frame != -1` in the statements would refuse every change, for
    # ever (test_a_record_without_a_time_is_refused).
    if (frame is None and text is not None) or (frame is not None and frame < 0):
        raise BadRecord(
            what="the stored record has no time",
            hint="delete the row if no process holds the lock",
            retry_after=RETRY_INTERVAL,
        )
    found = CassandraRow(
        version=row["version"],
        ticket=row["ticket"],
        since=None if at is None else millis_of(at),
        record=None if text is None else loads(text),
        frame=frame,
    )
    return settled(found, row.get("ticket_written"))


def settled(found: CassandraRow, ballot: int | None) -> CassandraRow:
    """Return the row with its provisional fences (1, 2, …) replaced by the true ones.

    ``ballot`` is the Paxos timestamp at which the mutex record was written, from which
    fences are counted; None: still unknown, so the row is returned unchanged. If
    another program wrote or removed the mutex record, the last fence becomes 0, and
    fences start at our next timestamp: that program's clock may be ahead, so fences
    counted from it would fall when the row is made anew.
    """
    if found.settled or found.record is None:
        return found
    if not found.ours:
        return replace(found, record=replace(found.record, last=0))
    if ballot is None:
        return found
    return replace(found, record=counted_from(found.record, ballot))


def counted_from(record: Doorman, ballot: int) -> Doorman:
    """Return the record with each fence n of 1, 2, … replaced by ``ballot`` + n - 1."""

    def true(fence: int) -> int:
        return fence + ballot - 1 if 0 < fence < PROVISIONAL_LIMIT else fence

    grants = tuple(replace(g, fence=true(g.fence)) for g in record.grants)
    endings = tuple(replace(e, fence=true(e.fence)) for e in record.endings)
    return replace(record, last=true(record.last), grants=grants, endings=endings)


def seat_columns(seat: MutexRecord) -> tuple[str, int]:
    """Return the ticket and ``acquired_at`` (ms) to store for a mutex record."""
    ticket, _, seconds = seat.value.rpartition(",")
    whole, _, rest = seconds.partition(".")
    return ticket, int(whole) * 1000 + int(rest or 0)


def millis_of(at: datetime) -> int:
    """Return a time in milliseconds since 1970; ``at`` is naive and in UTC."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // _MILLI  # the driver's is naive, in UTC


def tickets_of(found: CassandraRow) -> Iterable[str]:
    """Return the tickets of the grants in the record."""
    return () if found.record is None else (g.ticket for g in found.record.grants)


def _format_seconds(millis: int) -> str:
    whole, rest = divmod(millis, 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)


# --------------------------------------------------------------------------- changes

# The row after it, the name of the statement, its values.
Change = tuple[CassandraRow, str, tuple[object, ...]]


def change_statement(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
    wall: int,
) -> Change:
    """Return the row after a change, the name of the change's statement, its values.

    ``found`` is the row so far: the statement changes nothing if the row has changed
    since. ``record`` and ``seat`` (the mutex record, or None) are to be stored. If
    nothing remains to store, the statement deletes the row, empties this library's
    columns, or writes a row that has only a version and expires. ``now`` is the row's
    own time, ``wall`` our wall clock at the same moment, in microseconds.
    """
    record = _keep_placeholder(found, record, now)
    # The frame and the wall clock must be of one moment, whatever else changes, or the
    # next reader judges leases as expired
    # (test_time_is_right_after_a_change_that_changes_nothing).
    if record.updated != wall:
        record = replace(record, updated=wall)
    idle = not (record.grants or record.queue or record.upgrader)
    if idle and record.barred_until <= now:
        return _emptied(key, found, record, seat, now)
    ticket, since = (None, None) if seat is None else seat_columns(seat)
    new = CassandraRow(_new_version(), ticket, since, record, now)
    ours = (new.version, dumps(record), now)
    if found == NO_ROW:
        return new, "insert", (ticket, since, *ours, *key)
    condition = (*found.condition, *_excluded_values(found, new))
    # If the seat stays, so does WRITETIME(ticket), the ballot that fences count from.
    stays = (ticket, since) == (found.ticket, found.since)
    if stays and (found.ours or not admits(found, new)):
        return new, "update_record", (*ours, *key, *condition)
    return new, "replace", (ticket, since, *ours, *key, *condition)


def _emptied(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
) -> Change:
    if found == NO_ROW:
        new = CassandraRow(_new_version())
        return new, "insert_placeholder", (PLACEHOLDER_SECONDS, new.version, *key)
    if seat is not None:  # a published program's: only our columns are emptied
        ticket, since = seat_columns(seat)
        nothing = (None, None, None)
        new = CassandraRow(ticket=ticket, since=since)
        return new, "update_record", (*nothing, *key, *found.condition, *NEVER_STORED)
    return removal(key, found.condition, placeholder_until(record) - now)


def removal(
    key: tuple[str, int], condition: tuple[object, ...], micros_left: int
) -> Change:
    """Return the row after a deletion, the name of the statement, and its values.

    The statement deletes the row ``key`` only if its version, ticket and
    ``acquired_at`` are those of ``condition``. If ``micros_left`` is positive, a row
    that has only a version remains for so many microseconds, so that no late request
    finds the row absent.
    """
    if micros_left <= 0:
        return NO_ROW, "delete", (*key, *condition)
    new = CassandraRow(_new_version())
    placeholder = (math.ceil(micros_left / MICROS), new.version)
    return new, "replace_by_placeholder", (*placeholder, *key, *condition)


def _excluded_values(
    found: CassandraRow, new: CassandraRow
) -> tuple[str | None, int | None]:
    # Returns what ``record`` and ``frame`` must not be. A change that admits a grant
    # builds on the row as this process remembers it. If another program has removed the
    # record since, no other process would know of the grant, so the columns must not be
    # null (``test_a_record_that_was_taken_away``). A renewal writes the record anew.
    if found.record is None or not admits(found, new):
        return NEVER_STORED
    return None, None


def admits(found: CassandraRow, new: CassandraRow) -> bool:
    """Return True if ``new`` has a grant whose ticket ``found`` lacks."""
    return not set(tickets_of(new)) <= set(tickets_of(found))


def needs_no_fence(found: CassandraRow, new: CassandraRow) -> bool:
    """Return True if ``new`` adds no fence to ``found`` and keeps its mutex record.

    Only such a change is allowed while the fences of ``found`` are provisional (1, 2,
    …): the true ones are counted from the time at which the mutex record was written.
    """
    before, after = found.record, new.record
    if before is None or after is None:
        return True
    stays = (new.ticket, new.since) == (found.ticket, found.since)
    same = (after.last, after.endings) == (before.last, before.endings)
    return stays and same and not admits(found, new)


def placeholder_until(record: Doorman) -> int:
    """Return until when (the row's own time, µs) the row must not be deleted, or 0."""
    until = dict(record.extra).get(PLACEHOLDER_UNTIL)
    return until if isinstance(until, int) else 0


def _keep_placeholder(found: CassandraRow, record: Doorman, now: int) -> Doorman:
    # Notes in the record that its row replaces a placeholder, which has to come back.
    # Otherwise a release would leave the row empty, and let the lost request in
    # (test_tombstones.py). Only the process that wrote the placeholder knows how long
    # it would have lived, so the full time is assumed.
    is_placeholder = (
        found.version is not None and found.record is None and found.ticket is None
    )
    if not is_placeholder:
        return record
    until = now + micros(PLACEHOLDER_SECONDS)
    return replace(record, extra=(*record.extra, (PLACEHOLDER_UNTIL, until)))


def _new_version() -> UUID:
    return UUID(bytes=random_id(), version=4)
